package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
)

// settings is where inventory listens and where it finds its files.
type settings struct {
	grpcAddress string
	httpAddress string
	stage       string
	configFile  string
	apiKeyFile  string
}

func settingsFromEnvironment() settings {
	return settings{
		grpcAddress: ":" + cmp.Or(os.Getenv("GRPC_PORT"), "9000"),
		httpAddress: ":" + cmp.Or(os.Getenv("HTTP_PORT"), "8080"),
		stage:       cmp.Or(os.Getenv("SHOP_STAGE"), "local"),
		configFile:  cmp.Or(os.Getenv("SHOP_CONFIG"), "/etc/shop/shop.json"),
		apiKeyFile:  cmp.Or(os.Getenv("SHOP_API_KEY_FILE"), "/var/run/secrets/shop/api-key"),
	}
}

// shopConfig is the ConfigMap that all services of the shop share.
type shopConfig struct {
	Greeting        string `json:"greeting"`
	Currency        string `json:"currency"`
	DiscountPercent uint32 `json:"discount_percent"`
	LowStock        uint32 `json:"low_stock"`
}

// shopConfig reads the file anew each time: it is small, and it changes under a running pod. Without a readable file
// the defaults hold.
func (s settings) shopConfig() shopConfig {
	config := shopConfig{Greeting: "Welcome", Currency: "EUR", LowStock: 10}
	if text, err := os.ReadFile(s.configFile); err == nil {
		_ = json.Unmarshal(text, &config)
	}
	return config
}

// apiKey tells whether the secret is there, and which one it is, without telling the secret.
type apiKey struct {
	Present     bool    `json:"present"`
	Fingerprint *string `json:"fingerprint"`
}

func (s settings) apiKey() apiKey {
	secret, err := os.ReadFile(s.apiKeyFile)
	if err != nil {
		return apiKey{}
	}
	sum := sha256.Sum256(secret)
	fingerprint := "sha256:" + hex.EncodeToString(sum[:6])
	return apiKey{Present: true, Fingerprint: &fingerprint}
}

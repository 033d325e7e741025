// Inspect is the program that a developer works on. It knows nothing of Standin: it reads a variable, a file, a DNS name
// and another service, as programs do, and prints what it found. It is linked statically, so nothing can be loaded into it.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// What it reads: from the sample service on this machine, or from a service of the shop in a cluster.
var sources = map[string][4]string{
	"": {
		"CHECKOUT_CURRENCY",
		"/etc/checkout/settings.yaml",
		"inventory.shop.internal",
		"http://inventory.shop.internal:8080/stock/book",
	},
	"shop": {
		"SHOP_STAGE",
		"/var/run/secrets/shop/api-key",
		"inventory",
		"http://inventory:8080/whoami",
	},
}

func main() {
	source := sources[strings.Join(os.Args[1:], " ")]
	variable, file, name, address := source[0], source[1], source[2], source[3]
	found := bufio.NewWriter(os.Stdout)
	defer found.Flush()
	report := func(what, value string, err error) {
		if err != nil {
			value = "- " + last(err)
		}
		fmt.Fprintf(found, "  %-44s %s\n", what, value)
	}
	host, err := os.Hostname()
	report("host name", host, err)
	report("variable "+variable, valueOf(variable), nil)
	settings, err := os.ReadFile(file)
	report("file "+file, strings.TrimSpace(string(settings)), err)
	addresses, err := net.LookupHost(name)
	report("name "+name, strings.Join(addresses, " "), err)
	response, err := get(address)
	report("GET "+strings.TrimPrefix(address, "http://"), response, err)
}

func valueOf(variable string) string {
	if value, isSet := os.LookupEnv(variable); isSet {
		return value
	}
	return "- not set"
}

func get(address string) (string, error) {
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Get(address)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return strings.TrimSpace(string(body)), err
}

// last returns the innermost error, without its context.
func last(err error) string {
	parts := strings.Split(err.Error(), ": ")
	return parts[len(parts)-1]
}

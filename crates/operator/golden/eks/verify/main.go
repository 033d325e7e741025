// Judges tokens for EKS as a cluster does: with the verifier of aws-iam-authenticator, which asks a service of AWS. That
// service is a server of this process, and checks signatures with AWS's own library.
//
// Each line of standard input is {"token": …, "cluster": …}; each line of standard output is "accepted" or "refused",
// and why.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go/aws/credentials"
	v4 "github.com/aws/aws-sdk-go/aws/signer/v4"
	"sigs.k8s.io/aws-iam-authenticator/pkg/token"
)

const region = "eu-north-1"

// The keys that the service knows. The test has the same.
var secrets = map[string]string{"ASIAEXAMPLEEXAMPLE00": "not/a/secret+but=asLongAsOneIs0123456789"}

func main() {
	service := httptest.NewTLSServer(http.HandlerFunc(whoIsIt))
	defer service.Close()
	// The verifier asks sts.REGION.amazonaws.com, and gets our server.
	http.DefaultTransport = &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, service.Listener.Addr().String())
		},
	}
	decoder := json.NewDecoder(os.Stdin)
	for decoder.More() {
		var asked struct{ Token, Cluster string }
		if err := decoder.Decode(&asked); err != nil {
			panic(err)
		}
		identity, err := token.NewVerifier(asked.Cluster, "aws", region).Verify(asked.Token)
		if err != nil {
			fmt.Println("refused", strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("accepted", identity.CanonicalARN)
		}
	}
}

// whoIsIt signs the question again, with the header as it came, and compares.
func whoIsIt(answer http.ResponseWriter, asked *http.Request) {
	query := asked.URL.Query()
	key, _, _ := strings.Cut(query.Get("X-Amz-Credential"), "/")
	secret, isKnown := secrets[key]
	date, err := time.Parse("20060102T150405Z", query.Get("X-Amz-Date"))
	expires, _ := strconv.Atoi(query.Get("X-Amz-Expires"))
	again, _ := http.NewRequest("GET", "https://"+asked.Host+"/?Action="+query.Get("Action")+"&Version="+query.Get("Version"), nil)
	again.Header.Set("x-k8s-aws-id", asked.Header.Get("x-k8s-aws-id"))
	signer := v4.NewSigner(credentials.NewStaticCredentials(key, secret, query.Get("X-Amz-Security-Token")))
	_, signErr := signer.Presign(again, nil, "sts", region, time.Duration(expires)*time.Second, date)
	if !isKnown || err != nil || signErr != nil || again.URL.Query().Get("X-Amz-Signature") != query.Get("X-Amz-Signature") {
		http.Error(answer, "SignatureDoesNotMatch", http.StatusForbidden)
		return
	}
	fmt.Fprint(answer, `{"GetCallerIdentityResponse": {"GetCallerIdentityResult": {"Account": "123456789012",
		"Arn": "arn:aws:sts::123456789012:assumed-role/standin/session", "UserId": "AROAEXAMPLE:session"}}}`)
}

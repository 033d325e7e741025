// Verifies tokens for EKS as a cluster does: with the verifier of aws-iam-authenticator, which sends a request to AWS STS. STS
// is replaced by a server in this process, which checks signatures with AWS's own library.
//
// Each line of standard input is {"token": …, "cluster": …}; each line of standard output is "accepted" or "refused",
// with the identity or the reason.
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

// The access keys of the service. The test has the same.
var secrets = map[string]string{"ASIAEXAMPLEEXAMPLE00": "not/a/secret+but=asLongAsOneIs0123456789"}

func main() {
	service := httptest.NewTLSServer(http.HandlerFunc(getCallerIdentity))
	defer service.Close()
	// Connections to sts.REGION.amazonaws.com are redirected to the server of this process.
	http.DefaultTransport = &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, service.Listener.Addr().String())
		},
	}
	decoder := json.NewDecoder(os.Stdin)
	for decoder.More() {
		var input struct{ Token, Cluster string }
		if err := decoder.Decode(&input); err != nil {
			panic(err)
		}
		identity, err := token.NewVerifier(input.Cluster, "aws", region).Verify(input.Token)
		if err != nil {
			fmt.Println("refused", strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("accepted", identity.CanonicalARN)
		}
	}
}

// getCallerIdentity signs the request again, with the received header, and compares the signatures.
func getCallerIdentity(response http.ResponseWriter, request *http.Request) {
	query := request.URL.Query()
	key, _, _ := strings.Cut(query.Get("X-Amz-Credential"), "/")
	secret, isKnown := secrets[key]
	date, err := time.Parse("20060102T150405Z", query.Get("X-Amz-Date"))
	expires, _ := strconv.Atoi(query.Get("X-Amz-Expires"))
	again, _ := http.NewRequest("GET", "https://"+request.Host+"/?Action="+query.Get("Action")+"&Version="+query.Get("Version"), nil)
	again.Header.Set("x-k8s-aws-id", request.Header.Get("x-k8s-aws-id"))
	signer := v4.NewSigner(credentials.NewStaticCredentials(key, secret, query.Get("X-Amz-Security-Token")))
	_, signErr := signer.Presign(again, nil, "sts", region, time.Duration(expires)*time.Second, date)
	if !isKnown || err != nil || signErr != nil || again.URL.Query().Get("X-Amz-Signature") != query.Get("X-Amz-Signature") {
		http.Error(response, "SignatureDoesNotMatch", http.StatusForbidden)
		return
	}
	fmt.Fprint(response, `{"GetCallerIdentityResponse": {"GetCallerIdentityResult": {"Account": "123456789012",
		"Arn": "arn:aws:sts::123456789012:assumed-role/standin/session", "UserId": "AROAEXAMPLE:session"}}}`)
}

// Checkout is the new version of the service, as a developer has it on their machine. It knows nothing of Standin.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
)

func main() {
	listener, err := net.Listen("tcp", ":8000")
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/", func(response http.ResponseWriter, request *http.Request) {
		host, _, _ := net.SplitHostPort(request.RemoteAddr)
		fmt.Fprintf(response, "order taken by the new version, for %s%s\n", host, environment())
	})
	fmt.Println("listening")
	log.Fatal(http.Serve(listener, nil))
}

// environment describes the cluster that the variables are from, if any.
func environment() string {
	if cluster, isSet := os.LookupEnv("CLUSTER_NAME"); isSet {
		return ", with the environment of cluster " + cluster
	}
	return ""
}

// Checkout is the new version of the service, as a developer has it on their machine. It knows nothing of Standin.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
)

func main() {
	listener, err := net.Listen("tcp", ":8000")
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/", func(answer http.ResponseWriter, request *http.Request) {
		host, _, _ := net.SplitHostPort(request.RemoteAddr)
		fmt.Fprintf(answer, "order taken by the new version, for %s\n", host)
	})
	fmt.Println("listening")
	log.Fatal(http.Serve(listener, nil))
}

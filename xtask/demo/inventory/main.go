// Inventory is a service that is reachable only in its own network. The same program takes orders, at its second address,
// as the deployed version of checkout.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
)

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("GET /stock/{item}", func(response http.ResponseWriter, request *http.Request) {
		host, _, _ := net.SplitHostPort(request.RemoteAddr)
		fmt.Fprintf(response, "7 of %s, for %s\n", request.PathValue("item"), host)
	})
	orders, err := net.Listen("tcp", os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	go http.Serve(orders, http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(response, "order taken by the deployed version")
	}))
	// The procfs is still the machine's, so it has our PID on the machine.
	pid, err := os.Readlink("/proc/self")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(pid)
	// The parent holds our standard input; we exit when the parent does.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	log.Fatal(http.Serve(listener, nil))
}

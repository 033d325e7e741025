// Inventory is a service that only its own network reaches. The same program takes orders, at its second address, as the
// version of checkout that is deployed.
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
	http.HandleFunc("GET /stock/{item}", func(answer http.ResponseWriter, request *http.Request) {
		host, _, _ := net.SplitHostPort(request.RemoteAddr)
		fmt.Fprintf(answer, "7 of %s, for %s\n", request.PathValue("item"), host)
	})
	orders, err := net.Listen("tcp", os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	go http.Serve(orders, http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(answer, "order taken by the deployed version")
	}))
	// The process file system is still the machine's, so it has the machine's number for us.
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

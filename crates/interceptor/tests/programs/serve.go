// A web server that returns the address of its client. It handles two requests, because both may use one connection.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	handler := func(writer http.ResponseWriter, request *http.Request) {
		host, _, _ := net.SplitHostPort(request.RemoteAddr)
		local := request.Context().Value(http.LocalAddrContextKey).(net.Addr)
		fmt.Fprintf(writer, "%s %s", host, local)
	}
	http.Serve(listener, http.HandlerFunc(handler))
}

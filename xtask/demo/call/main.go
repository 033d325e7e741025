// Call is a client of the service: it sends one request, with the headers that follow the address, and prints the response.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	request, err := http.NewRequest("GET", os.Args[1], nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, header := range os.Args[2:] {
		name, value, _ := strings.Cut(header, ": ")
		request.Header.Set(name, value)
	}
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print("  ", string(body))
}

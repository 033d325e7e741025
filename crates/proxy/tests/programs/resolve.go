// Prints the addresses of names, one line for each name.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sort"
	"strings"
)

func main() {
	for _, name := range os.Args[1:] {
		addresses, err := net.DefaultResolver.LookupHost(context.Background(), name)
		text := strings.Join(sorted(addresses), " ")
		var failure *net.DNSError
		switch {
		case errors.As(err, &failure) && failure.IsNotFound:
			text = "none"
		case err != nil:
			text = "again"
		case len(addresses) > 8:
			text = fmt.Sprint(len(addresses), " addresses")
		}
		fmt.Printf("%s: %s\n", name, text)
	}
}

func sorted(texts []string) []string {
	sort.Strings(texts)
	return texts
}

// Look is the program that a developer works on. It knows nothing of Standin: it reads a variable, a file, a name and
// another service, as programs do, and says what it found. It is linked statically, so nothing can be loaded into it.
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
	place := sources[strings.Join(os.Args[1:], " ")]
	variable, file, name, address := place[0], place[1], place[2], place[3]
	found := bufio.NewWriter(os.Stdout)
	defer found.Flush()
	say := func(what, answer string, err error) {
		if err != nil {
			answer = "- " + last(err)
		}
		fmt.Fprintf(found, "  %-44s %s\n", what, answer)
	}
	host, err := os.Hostname()
	say("host name", host, err)
	say("variable "+variable, valueOf(variable), nil)
	settings, err := os.ReadFile(file)
	say("file "+file, strings.TrimSpace(string(settings)), err)
	addresses, err := net.LookupHost(name)
	say("name "+name, strings.Join(addresses, " "), err)
	answer, err := get(address)
	say("GET "+strings.TrimPrefix(address, "http://"), answer, err)
}

func valueOf(variable string) string {
	if value, there := os.LookupEnv(variable); there {
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

// last is what went wrong, without the list of who had to do with it.
func last(err error) string {
	parts := strings.Split(err.Error(), ": ")
	return parts[len(parts)-1]
}

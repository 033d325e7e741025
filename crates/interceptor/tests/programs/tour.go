// A tour of what a stand-in must see: environment, files, host name, connections. Prints one line for each.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"sort"
	"time"
)

func show(what string, value any, err error) {
	if err != nil {
		fmt.Println(what, "failed:", err)
		return
	}
	fmt.Println(what, value)
}

func main() {
	fmt.Println("env", os.Getenv("GREETING"))
	content, err := os.ReadFile("/remote-files/file")
	show("read", string(content), err)
	entries, err := os.ReadDir("/remote-files/list")
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	sort.Strings(names)
	show("list", names, err)
	_, err = os.Stat("/remote-files/missing")
	fmt.Println("missing", os.IsNotExist(err))
	show("write", "ok", os.WriteFile("/remote-files/written", []byte("written"), 0o644))
	name, err := os.Hostname()
	show("hostname", name, err)

	connection, err := net.DialTimeout("tcp", "198.51.100.7:7", 10*time.Second)
	show("connect", "ok", err)
	fmt.Fprint(connection, "hello")
	buffer := make([]byte, 100)
	count, err := connection.Read(buffer)
	show("tcp", string(buffer[:count]), err)
	show("peer", connection.RemoteAddr(), nil)
	connection.(*net.TCPConn).CloseWrite()
	_, err = connection.Read(buffer)
	fmt.Println("end", err == io.EOF)
	_, err = net.DialTimeout("tcp", "198.51.100.7:9", 10*time.Second)
	fmt.Println("refused", err)

	udp, err := net.Dial("udp", "198.51.100.7:7")
	show("udp connect", "ok", err)
	udp.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprint(udp, "hello")
	count, err = udp.Read(buffer)
	show("udp", string(buffer[:count]), err)
	packets, err := net.ListenPacket("udp4", ":0")
	show("udp listen", "ok", err)
	packets.SetDeadline(time.Now().Add(10 * time.Second))
	to, _ := net.ResolveUDPAddr("udp", "198.51.100.7:7")
	packets.WriteTo([]byte("packet"), to)
	count, from, err := packets.ReadFrom(buffer)
	show("packet", fmt.Sprint(string(buffer[:count]), " ", from), err)
}

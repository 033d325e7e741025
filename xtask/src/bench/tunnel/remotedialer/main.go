// The programs of the tunnel bench that are not ours: the target, the load, and a tunnel with remotedialer.
//
//	certificates FOLDER NAME…       an authority, and certificates for a hub with these names and for an agent
//	target ADDRESS                  serves what the load asks for
//	hub FOLDER ADDRESS FORWARD TO   accepts an agent, and forwards connections to FORWARD through it
//	agent FOLDER URL                dials a hub
//	load                            executes the requests that are read from standard input
//
// Every program ends with its standard input.
package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	commands := map[string]func([]string) error{
		"certificates": certificates,
		"target":       target,
		"hub":          hub,
		"agent":        agent,
		"load":         load,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fail(fmt.Errorf("a command is missing"))
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "remotedialer bench:", err)
	os.Exit(1)
}

// ready says that a program serves, and waits for the end of its input.
func ready() error {
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

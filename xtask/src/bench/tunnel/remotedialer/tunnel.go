package main

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
	"github.com/rancher/remotedialer"
	"github.com/sirupsen/logrus"
)

const cluster = "bench"

// hub accepts an agent, and forwards connections through it.
func hub(arguments []string) error {
	folder, address, forward, to := arguments[0], arguments[1], arguments[2], arguments[3]
	logrus.SetLevel(logrus.WarnLevel)
	config, err := configuration(folder, "hub")
	if err != nil {
		return err
	}
	server := remotedialer.New(func(*http.Request) (string, bool, error) {
		return cluster, true, nil
	}, remotedialer.DefaultErrorWriter)
	listener, err := tls.Listen("tcp", address, config)
	if err != nil {
		return err
	}
	go func() { fail(http.Serve(listener, server)) }()
	clients, err := net.Listen("tcp", forward)
	if err != nil {
		return err
	}
	go func() {
		dial := server.Dialer(cluster)
		for {
			client, err := clients.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				stream, err := dial(context.Background(), "tcp", to)
				if err != nil {
					return
				}
				defer stream.Close()
				relay(client, stream)
			}()
		}
	}()
	return ready()
}

// relay copies in both directions until one has ended.
func relay(left, right net.Conn) {
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{left, right}, {right, left}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			done <- struct{}{}
		}()
	}
	<-done
}

// agent dials a hub, again and again.
func agent(arguments []string) error {
	folder, url := arguments[0], arguments[1]
	logrus.SetLevel(logrus.WarnLevel)
	config, err := configuration(folder, "agent")
	if err != nil {
		return err
	}
	dialer := &websocket.Dialer{TLSClientConfig: config, HandshakeTimeout: 10 * time.Second}
	connected := make(chan struct{}, 1)
	go func() {
		for {
			allow := func(string, string) bool { return true }
			_ = remotedialer.ClientConnect(context.Background(), url, http.Header{}, dialer, allow,
				func(context.Context, *remotedialer.Session) error {
					select {
					case connected <- struct{}{}:
					default:
					}
					return nil
				})
		}
	}()
	<-connected
	return ready()
}

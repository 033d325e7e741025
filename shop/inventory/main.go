// Inventory knows how many of each item the shop has, and speaks gRPC.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"

	"example.com/shop/inventory/shoppb"
)

// drainTime is how long open calls may take to end after SIGTERM. A watch never ends by itself.
const drainTime = time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, settingsFromEnvironment()); err != nil {
		slog.Error("inventory failed", "error", err)
		os.Exit(1)
	}
}

// run serves gRPC and HTTP until ctx is done.
func run(ctx context.Context, settings settings) error {
	grpcListener, err := net.Listen("tcp", settings.grpcAddress)
	if err != nil {
		return err
	}
	httpListener, err := net.Listen("tcp", settings.httpAddress)
	if err != nil {
		return err
	}
	me := identityFromEnvironment("inventory")
	grpcServer := newGRPCServer(me, settings)
	httpServer := &http.Server{Handler: httpHandler(me, settings)}

	failed := make(chan error, 2)
	go func() { failed <- grpcServer.Serve(grpcListener) }()
	go func() { failed <- httpServer.Serve(httpListener) }()
	slog.Info("inventory is up", "grpc", grpcListener.Addr(), "http", httpListener.Addr(), "pod", me.GetPod())

	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	drain(grpcServer, httpServer)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func newGRPCServer(me *shoppb.Identity, settings settings) *grpc.Server {
	server := grpc.NewServer(
		grpc.UnaryInterceptor(identifyUnary(me)),
		grpc.StreamInterceptor(identifyStream(me)),
	)
	shoppb.RegisterInventoryServer(server, &inventoryServer{me: me, stock: newStock(), settings: settings})
	reflection.Register(server)
	return server
}

func drain(grpcServer *grpc.Server, httpServer *http.Server) {
	deadline := time.AfterFunc(drainTime, grpcServer.Stop)
	defer deadline.Stop()
	httpServer.Close()
	grpcServer.GracefulStop()
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"example.com/shop/inventory/shoppb"
)

// identityHeader carries the identity as JSON, in HTTP answers and in gRPC metadata alike.
const identityHeader = "shop-identity"

func identityFromEnvironment(service string) *shoppb.Identity {
	host, _ := os.Hostname()
	pod := cmp.Or(os.Getenv("POD_NAME"), host)
	return &shoppb.Identity{
		Service: service,
		Cluster: cmp.Or(os.Getenv("CLUSTER_NAME"), "none"),
		Pod:     pod,
		Replica: replicaOf(pod),
	}
}

// replicaOf is what follows the last '-': a StatefulSet's ordinal or a ReplicaSet's suffix.
func replicaOf(pod string) string {
	return pod[strings.LastIndex(pod, "-")+1:]
}

func identityJSON(me *shoppb.Identity) string {
	// An identity is four strings, which always have a JSON form.
	text, _ := json.Marshal(me)
	return string(text)
}

func identifyUnary(me *shoppb.Identity) grpc.UnaryServerInterceptor {
	header := metadata.Pairs(identityHeader, identityJSON(me))
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if err := grpc.SetHeader(ctx, header); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

func identifyStream(me *shoppb.Identity) grpc.StreamServerInterceptor {
	header := metadata.Pairs(identityHeader, identityJSON(me))
	return func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := stream.SetHeader(header); err != nil {
			return err
		}
		return next(server, stream)
	}
}

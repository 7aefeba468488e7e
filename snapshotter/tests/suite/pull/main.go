// Command pull pulls an image from a registry on loopback into containerd, in the way of nerdctl
// and the CRI plugin: each layer has labels that say where it comes from.
//
//	pull CONTAINERD-SOCKET REFERENCE
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pull CONTAINERD-SOCKET REFERENCE")
		os.Exit(2)
	}
	if err := pull(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pull:", err)
		os.Exit(1)
	}
}

func pull(socket, reference string) error {
	ctx := namespaces.WithNamespace(context.Background(), "default")
	containerd, err := client.New(socket)
	if err != nil {
		return err
	}
	defer containerd.Close()
	hosts := docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchLocalhost))
	_, err = containerd.Pull(ctx, reference,
		client.WithPullUnpack,
		client.WithPullSnapshotter("barge"),
		client.WithResolver(docker.NewResolver(docker.ResolverOptions{Hosts: hosts})),
		client.WithImageHandlerWrapper(snapshotters.AppendInfoHandlerWrapper(reference)),
	)
	return err
}

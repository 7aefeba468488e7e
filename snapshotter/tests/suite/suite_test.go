// Package suite runs containerd's own test suite for snapshotters against barge-snapshotter.
package suite

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/core/snapshots/testsuite"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// start runs the program that BARGE_SNAPSHOTTER names, and connects to it as containerd does.
func start(ctx context.Context, root string) (snapshots.Snapshotter, func() error, error) {
	socket := filepath.Join(filepath.Dir(root), "barge.sock")
	server := exec.Command(os.Getenv("BARGE_SNAPSHOTTER"), "--layer-source", "none", "--root", root, "--address", socket)
	server.Stderr = os.Stderr
	output, err := server.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := server.Start(); err != nil {
		return nil, nil, err
	}
	stop := func() error {
		if err := server.Process.Signal(os.Interrupt); err != nil {
			return err
		}
		return server.Wait()
	}
	// The first line says that the socket is there.
	if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		return nil, nil, err
	}
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	cleanup := func() error {
		connection.Close()
		return stop()
	}
	return proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(connection), "barge"), cleanup, nil
}

func TestSnapshotter(t *testing.T) {
	if os.Getenv("BARGE_SNAPSHOTTER") == "" {
		t.Fatal("BARGE_SNAPSHOTTER has to name the program")
	}
	if deadline, ok := t.Deadline(); ok && time.Until(deadline) < time.Minute {
		t.Fatal("the suite takes a timeout of a minute at least")
	}
	// The name says which renames the snapshots allow: those of the kernel's overlayfs.
	testsuite.SnapshotterSuite(t, "overlayfs", start)
}

// SPDX-License-Identifier: Apache-2.0

// The runtime's side of NRI by containerd's own library, without a runtime: each line of standard input is one request
// to all plugins, and its answer one line of JSON. Pods and containers that a plugin is synchronized with are made up.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/log"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// What the library logs, as facts of the test.
type lines struct {
	sync.Mutex
	said []string
}

func (l *lines) add(level, format string, args ...any) {
	l.Lock()
	defer l.Unlock()
	l.said = append(l.said, level+": "+fmt.Sprintf(format, args...))
}

func (l *lines) Debugf(_ context.Context, format string, args ...any) {
	l.add("debug", format, args...)
}
func (l *lines) Infof(_ context.Context, format string, args ...any) { l.add("info", format, args...) }
func (l *lines) Warnf(_ context.Context, format string, args ...any) { l.add("warn", format, args...) }
func (l *lines) Errorf(_ context.Context, format string, args ...any) {
	l.add("error", format, args...)
}

func (l *lines) all() []string {
	l.Lock()
	defer l.Unlock()
	return append([]string{}, l.said...)
}

type request struct {
	Op        string          // run, remove, create, update, log, stop
	Pod       json.RawMessage // api.PodSandbox
	Container json.RawMessage // api.Container
	Times     int             // so often, one after the other
	PauseUs   int             // between two
}

type answer struct {
	Us       []int64         `json:"us"`
	Response json.RawMessage `json:"response,omitempty"`
	Error    string          `json:"error,omitempty"`
	Log      []string        `json:"log,omitempty"`
}

func node(pods, padding int) ([]*api.PodSandbox, []*api.Container) {
	var sandboxes []*api.PodSandbox
	var containers []*api.Container
	for n := range pods {
		id := fmt.Sprintf("pod-%d", n)
		sandboxes = append(sandboxes, &api.PodSandbox{
			Id: id, Name: id, Uid: id, Namespace: "team", Linux: &api.LinuxPodSandbox{CgroupParent: "/kubepods/" + id},
			Annotations: map[string]string{"padding": strings.Repeat("x", padding)},
		})
		for m := range 3 {
			containers = append(containers, &api.Container{
				Id: fmt.Sprintf("%s-%d", id, m), PodSandboxId: id, Name: "c",
				Env: []string{"PADDING=" + strings.Repeat("x", padding)},
			})
		}
	}
	return sandboxes, containers
}

func main() {
	socket := flag.String("socket", "", "where plugins connect")
	pods := flag.Int("pods", 0, "that a plugin is synchronized with, with three containers each")
	padding := flag.Int("padding", 100, "bytes that each of these has")
	flag.Parse()
	said := &lines{}
	log.Set(said)
	// A runtime waits 2 s. On a machine that does something else meanwhile, what a plugin takes is counted in CPU time.
	adaptation.SetPluginRequestTimeout(20 * time.Second)
	sandboxes, containers := node(*pods, *padding)
	synchronize := func(ctx context.Context, with adaptation.SyncCB) error {
		started := time.Now()
		_, err := with(ctx, sandboxes, containers)
		said.add("info", "synchronized %d pods in %d us, error %v", len(sandboxes), time.Since(started).Microseconds(), err)
		return err
	}
	update := func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
		return nil, nil
	}
	runtime, err := adaptation.New("koordebpf.test", "v0.11.0", synchronize, update,
		adaptation.WithSocketPath(*socket), adaptation.WithPluginPath("/nonexistent"),
		adaptation.WithPluginConfigPath("/nonexistent"))
	if err == nil {
		err = runtime.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer runtime.Stop()
	out := json.NewEncoder(os.Stdout)
	in := bufio.NewReaderSize(os.Stdin, 1<<24)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		if err := out.Encode(serve(runtime, said, line)); err != nil {
			return
		}
	}
}

func serve(runtime *adaptation.Adaptation, said *lines, line []byte) (found answer) {
	var asked request
	pod, container := &api.PodSandbox{}, &api.Container{}
	for _, err := range []error{json.Unmarshal(line, &asked), parse(asked.Pod, pod), parse(asked.Container, container)} {
		if err != nil {
			return answer{Error: err.Error()}
		}
	}
	if asked.Op == "log" {
		return answer{Log: said.all()}
	}
	for range max(asked.Times, 1) {
		started := time.Now()
		response, err := ask(runtime, asked.Op, pod, container)
		found.Us = append(found.Us, time.Since(started).Microseconds())
		if err != nil {
			return answer{Error: err.Error()}
		}
		found.Response = response
		time.Sleep(time.Duration(asked.PauseUs) * time.Microsecond)
	}
	return found
}

func parse(text json.RawMessage, into proto.Message) error {
	if len(text) == 0 {
		return nil
	}
	return protojson.Unmarshal(text, into)
}

func ask(runtime *adaptation.Adaptation, op string, pod *api.PodSandbox, container *api.Container) ([]byte, error) {
	ctx := context.Background()
	switch op {
	case "run":
		return nil, runtime.RunPodSandbox(ctx, &api.StateChangeEvent{Pod: pod})
	case "remove":
		return nil, runtime.RemovePodSandbox(ctx, &api.StateChangeEvent{Pod: pod})
	case "create":
		response, err := runtime.CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: container})
		if err != nil {
			return nil, err
		}
		return protojson.Marshal(response)
	case "update":
		resources := container.GetLinux().GetResources()
		response, err := runtime.UpdateContainer(ctx, &api.UpdateContainerRequest{
			Pod: pod, Container: container, LinuxResources: resources,
		})
		if err != nil {
			return nil, err
		}
		return protojson.Marshal(response)
	}
	return nil, fmt.Errorf("there is no op %q", op)
}

// SPDX-License-Identifier: Apache-2.0

// What a Katalyst agent does with an eviction plugin, by its own code: the kubelet's plugin manager finds the socket,
// katalyst-core's endpoint calls it. For each line of standard input one round is made, and its answers are one line of
// JSON.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/operationexecutor"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/pluginwatcher"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/reconciler"

	"github.com/kubewharf/katalyst-api/pkg/plugins/registration"
	api "github.com/kubewharf/katalyst-api/pkg/protocol/evictionplugin/v1alpha1"
	"github.com/kubewharf/katalyst-core/pkg/agent/evictionmanager/endpoint"
)

type found struct {
	name   string
	remote *endpoint.RemoteEndpointImpl
}

type manager struct {
	registered chan found
	left       chan string
}

func (manager) ValidatePlugin(name, socket string, versions []string) error {
	if !slices.Contains(versions, registration.BaseVersion) {
		return fmt.Errorf("%s supports %v", name, versions)
	}
	return nil
}

func (m manager) RegisterPlugin(name, socket string, _ []string) error {
	remote, err := endpoint.NewRemoteEndpointImpl(socket, name)
	if err == nil {
		m.registered <- found{name, remote}
	}
	return err
}

func (m manager) DeRegisterPlugin(name string) { m.left <- name }

// Watch makes what the kubelet's NewPluginManager makes, without the rest of the kubelet.
func watch(folder string, handler manager) {
	actual, desired := cache.NewActualStateOfWorld(), cache.NewDesiredStateOfWorld()
	executor := operationexecutor.NewOperationExecutor(operationexecutor.NewOperationGenerator(nil))
	reconciles := reconciler.NewReconciler(executor, time.Second, desired, actual)
	reconciles.AddHandler(registration.EvictionPlugin, handler)
	if err := pluginwatcher.NewWatcher(folder, desired).Start(wait.NeverStop); err != nil {
		panic(err)
	}
	go reconciles.Run(wait.NeverStop)
}

type round struct {
	Plugin    string
	Token     string
	Threshold *api.ThresholdMetResponse
	Evict     int      // pods of GetEvictPods
	Top       []string // UIDs
	Grace     *int64
	Unchanged bool // what came back is what was sent, byte for byte
	Left      bool // it was registered no more
	Error     string
}

func (r *round) make(remote *endpoint.RemoteEndpointImpl, pods []*corev1.Pod) error {
	ctx := context.Background()
	token, err := remote.GetToken(ctx)
	if err != nil {
		return err
	}
	r.Token = token.Token
	evict, err := remote.GetEvictPods(ctx, &api.GetEvictPodsRequest{ActivePods: pods})
	if err != nil {
		return err
	}
	r.Evict = len(evict.EvictPods)
	if r.Threshold, err = remote.ThresholdMet(ctx); err != nil || r.Threshold.MetType == api.ThresholdMetType_NOT_MET {
		return err
	}
	top := uint64(0) // all
	if r.Threshold.MetType == api.ThresholdMetType_HARD_MET {
		top = 1
	}
	asked := &api.GetTopEvictionPodsRequest{ActivePods: pods, TopN: top, EvictionScope: r.Threshold.EvictionScope}
	chosen, err := remote.GetTopEvictionPods(ctx, asked)
	if err != nil {
		return err
	}
	if chosen.DeletionOptions != nil {
		r.Grace = &chosen.DeletionOptions.GracePeriodSeconds
	}
	r.Unchanged = true
	for _, pod := range chosen.TargetPods {
		r.Top = append(r.Top, string(pod.UID))
		sent := slices.IndexFunc(pods, func(each *corev1.Pod) bool { return each.UID == pod.UID })
		came, _ := pod.Marshal()
		was, _ := pods[sent].Marshal()
		r.Unchanged = r.Unchanged && bytes.Equal(came, was)
	}
	return nil
}

func main() {
	var pods []*corev1.Pod
	text, err := os.ReadFile(os.Args[2])
	if err == nil {
		err = json.Unmarshal(text, &pods)
	}
	if err != nil {
		panic(err)
	}
	handler := manager{make(chan found, 8), make(chan string, 8)}
	watch(os.Args[1], handler)
	plugin := <-handler.registered
	out := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		said := round{Plugin: plugin.name}
		if lines.Text() == "left" {
			said.Left = <-handler.left == plugin.name
		} else if err := said.make(plugin.remote, pods); err != nil {
			said.Error = err.Error()
		}
		if err := out.Encode(said); err != nil {
			panic(err)
		}
	}
}

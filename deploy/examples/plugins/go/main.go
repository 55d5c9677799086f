// SPDX-License-Identifier: Apache-2.0

// An eviction plugin on the skeleton of katalyst-api: while a directory's file system has less free space than it has
// to, the pod of the lowest priority is evicted.
package main

import (
	"context"
	"flag"
	"os/signal"
	"sort"
	"syscall"

	"github.com/kubewharf/katalyst-api/pkg/plugins/skeleton"
	api "github.com/kubewharf/katalyst-api/pkg/protocol/evictionplugin/v1alpha1"
)

var (
	sockets = flag.String("directory", "/var/lib/katalyst/plugin-socks", "where the agent looks for plugins")
	watched = flag.String("watch", "/var", "a directory of the file system that is watched")
	least   = flag.Float64("free-percent", 10, "below this share of free space a pod is evicted")
)

type plugin struct {
	skeleton.DummyEvictionPlugin // Start, Stop, and every call that is not below
}

func (plugin) Name() string { return "example-disk-plugin" }

func (plugin) GetToken(context.Context, *api.Empty) (*api.GetTokenResponse, error) {
	return &api.GetTokenResponse{}, nil
}

func (plugin) ThresholdMet(context.Context, *api.Empty) (*api.ThresholdMetResponse, error) {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(*watched, &disk); err != nil {
		return nil, err
	}
	free := 100 * float64(disk.Bavail) / float64(max(disk.Blocks, 1))
	answer := &api.ThresholdMetResponse{
		ThresholdValue: *least, ObservedValue: free, ThresholdOperator: api.ThresholdOperator_LESS_THAN,
		EvictionScope: "disk", GracePeriodSeconds: 0,
	}
	if free < *least {
		answer.MetType = api.ThresholdMetType_HARD_MET
	}
	return answer, nil
}

func (plugin) GetTopEvictionPods(_ context.Context, asked *api.GetTopEvictionPodsRequest) (*api.GetTopEvictionPodsResponse, error) {
	pods := asked.ActivePods
	priority := func(at int) int32 {
		if pods[at].Spec.Priority == nil {
			return 0
		}
		return *pods[at].Spec.Priority
	}
	sort.SliceStable(pods, func(one, other int) bool { return priority(one) < priority(other) })
	return &api.GetTopEvictionPodsResponse{TargetPods: pods[:min(uint64(len(pods)), asked.TopN)]}, nil
}

func (plugin) GetEvictPods(context.Context, *api.GetEvictPodsRequest) (*api.GetEvictPodsResponse, error) {
	return &api.GetEvictPodsResponse{}, nil
}

func main() {
	flag.Parse()
	ended, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	served, err := skeleton.NewRegistrationPluginWrapper(plugin{}, []string{*sockets}, nil)
	if err != nil {
		panic(err)
	}
	if err := served.Start(); err != nil {
		panic(err)
	}
	<-ended.Done()
	_ = served.Stop()
}

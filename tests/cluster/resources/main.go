// SPDX-License-Identifier: Apache-2.0

// What Kubernetes itself says of pods, each a line of JSON on standard input: the defaults of the API server, requests as
// kube-scheduler counts them, limits as kubelet does, and the class. Answers with a line for each.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"

	v1 "k8s.io/api/core/v1"
	resource "k8s.io/component-helpers/resource"
	defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
)

type answer struct {
	Scheduled           v1.ResourceList `json:"scheduled"`           // with the status of the pod's own level
	ContainersScheduled v1.ResourceList `json:"containersScheduled"` // without it: no pod is resized as a whole
	Specified           v1.ResourceList `json:"specified"`
	Limits              v1.ResourceList `json:"limits"` // of the specification
	Class               v1.PodQOSClass  `json:"class"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		pod := &v1.Pod{}
		if err := json.Unmarshal(lines.Bytes(), pod); err != nil {
			log.Fatal(err)
		}
		defaults.SetObjectDefaults_Pod(pod)
		err := out.Encode(answer{
			Scheduled: resource.PodRequests(pod, resource.PodResourcesOptions{
				UseStatusResources: true,
				InPlacePodLevelResourcesVerticalScalingEnabled: true,
			}),
			ContainersScheduled: resource.PodRequests(pod, resource.PodResourcesOptions{UseStatusResources: true}),
			Specified:           resource.PodRequests(pod, resource.PodResourcesOptions{}),
			Limits:              resource.PodLimits(pod, resource.PodResourcesOptions{}),
			Class:               qos.ComputePodQOS(pod),
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}

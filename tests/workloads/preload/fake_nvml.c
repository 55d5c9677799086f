// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// libnvidia-ml.so.1 for machines without GPUs: it answers what the file $FAKE_NVML says when it is asked.
//   gpu MINOR UUID            one GPU of 16 GiB; its index is the number of those before it
//   process INDEX PID BYTES   a compute process
//   sample INDEX PID PERCENT MICROSECONDS
//   broken CODE               every call that asks for processes returns this
#include <stdio.h>
#include <stdlib.h>

#define SUCCESS 0
#define ERROR_NOT_FOUND 6
#define ERROR_INSUFFICIENT_SIZE 7
#define ERROR_DRIVER_NOT_LOADED 9
#define MOST 64

struct process_info {
	unsigned int pid;
	unsigned long long used_gpu_memory;
	unsigned int gpu_instance_id;
	unsigned int compute_instance_id;
};

struct sample {
	unsigned int pid;
	unsigned long long time_stamp;
	unsigned int sm_util;
	unsigned int mem_util;
	unsigned int enc_util;
	unsigned int dec_util;
};

struct memory {
	unsigned long long total;
	unsigned long long free;
	unsigned long long used;
};

struct gpu {
	unsigned int minor;
	char uuid[96];
};

static struct gpu gpus[MOST];
static struct process_info processes[MOST];
static struct sample samples[MOST];
static unsigned int process_gpus[MOST], sample_gpus[MOST];
static unsigned int gpu_count, process_count, sample_count, broken;

static int look(void)
{
	char line[256];
	FILE *file = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "", "r");

	gpu_count = process_count = sample_count = broken = 0;
	if (!file)
		return ERROR_DRIVER_NOT_LOADED;
	while (fgets(line, sizeof(line), file)) {
		struct process_info *process = &processes[process_count];
		struct sample *sample = &samples[sample_count];

		if (sscanf(line, "gpu %u %95s", &gpus[gpu_count].minor, gpus[gpu_count].uuid) == 2)
			gpu_count++;
		else if (sscanf(line, "process %u %u %llu", &process_gpus[process_count], &process->pid,
				&process->used_gpu_memory) == 3)
			process_count++;
		else if (sscanf(line, "sample %u %u %u %llu", &sample_gpus[sample_count], &sample->pid,
				&sample->sm_util, &sample->time_stamp) == 4)
			sample_count++;
		else
			sscanf(line, "broken %u", &broken);
	}
	fclose(file);
	return SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags __attribute__((unused)))
{
	return look();
}

int nvmlInit_v2(void)
{
	return look();
}

int nvmlShutdown(void)
{
	return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
	*count = gpu_count;
	return SUCCESS;
}

// A handle is the index and one more: no handle is NULL.
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
	*handle = (void *)(size_t)(index + 1);
	return index < gpu_count ? SUCCESS : ERROR_NOT_FOUND;
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned int *minor)
{
	*minor = gpus[(size_t)handle - 1].minor;
	return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length)
{
	snprintf(uuid, length, "%s", gpus[(size_t)handle - 1].uuid);
	return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle __attribute__((unused)), struct memory *memory)
{
	*memory = (struct memory){.total = 16ULL << 30};
	return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, struct process_info *found)
{
	unsigned int seen = 0, room = *count;

	look();
	if (broken)
		return broken;
	for (unsigned int i = 0; i < process_count; i++) {
		if (process_gpus[i] + 1 != (size_t)handle)
			continue;
		if (found && seen < room)
			found[seen] = processes[i];
		seen++;
	}
	*count = seen;
	return seen > room || (seen && !found) ? ERROR_INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetProcessUtilization(void *handle, struct sample *found, unsigned int *count, unsigned long long since)
{
	unsigned int seen = 0;

	look();
	if (broken)
		return broken;
	for (unsigned int i = 0; i < sample_count; i++) {
		if (sample_gpus[i] + 1 != (size_t)handle || samples[i].time_stamp <= since)
			continue;
		if (found && seen < *count)
			found[seen] = samples[i];
		seen++;
	}
	*count = seen;
	return !seen ? ERROR_NOT_FOUND : found ? SUCCESS : ERROR_INSUFFICIENT_SIZE;
}

// nvidia-ml-py asks for the text of an error by this.
const char *nvmlErrorString(int code)
{
	return code == ERROR_DRIVER_NOT_LOADED ? "Driver Not Loaded" : "GPU is lost";
}

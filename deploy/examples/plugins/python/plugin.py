"""Evicts the pod of the lowest priority while a disk is short of space: plugin.py SOCKETS WATCHED FREE-PERCENT."""

import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

api, services = grpc.protos_and_services("evictionplugin.proto")
registration, registry = grpc.protos_and_services("pluginregistration.proto")
SOCKET, WATCHED, LEAST = Path(sys.argv[1]) / "example-disk-plugin.sock", sys.argv[2], float(sys.argv[3])


class Plugin(services.EvictionPluginServicer, registry.RegistrationServicer):
    def GetInfo(self, request, context):
        return registration.PluginInfo(type="EvictionPlugin", name=SOCKET.stem, supported_versions=["v1alpha1"])

    def NotifyRegistrationStatus(self, request, context):
        print("registered" if request.plugin_registered else f"refused: {request.error}", flush=True)
        return registration.RegistrationStatusResponse()

    def ThresholdMet(self, request, context):
        disk = shutil.disk_usage(WATCHED)
        free = 100 * disk.free / disk.total
        met = api.HARD_MET if free < LEAST else api.NOT_MET
        return api.ThresholdMetResponse(met_type=met, threshold_value=LEAST, observed_value=free, eviction_scope="disk")

    def GetTopEvictionPods(self, request, context):
        pods = sorted(request.active_pods, key=lambda pod: pod.spec.priority)  # sent back as they came
        return api.GetTopEvictionPodsResponse(target_pods=pods[: request.topN])

    GetEvictPods = lambda self, request, context: api.GetEvictPodsResponse()  # noqa: E731
    GetToken = lambda self, request, context: api.GetTokenResponse()  # noqa: E731


SOCKET.unlink(missing_ok=True)
server = grpc.server(ThreadPoolExecutor(4))
services.add_EvictionPluginServicer_to_server(Plugin(), server)
registry.add_RegistrationServicer_to_server(Plugin(), server)
server.add_insecure_port(f"unix:{SOCKET}")
server.start()
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
try:
    server.wait_for_termination()
finally:
    SOCKET.unlink(missing_ok=True)

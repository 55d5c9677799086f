"""Koordinator's runtime hook service, which koord-runtime-proxy asks before it passes a kubelet's request on."""

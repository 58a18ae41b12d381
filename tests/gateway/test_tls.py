"""The data port's certificate: what is accepted, what is refused, and its renewal."""

import shutil
import ssl
import warnings

import pytest

from certificates import encrypt_key, make_certificate
from headstart.errors import ConfigError
from headstart.gateway.tls import Certificate
from loopback import RawClient, ScriptedEngine, chat, eventually, post, running


def replace(source, target):
    """As certificate managers do: a new file under the old name."""
    fresh = target.with_suffix(".new")
    shutil.copy(source, fresh)
    fresh.replace(target)


def serial(client):
    """Which certificate a connection was made with."""
    return client.writer.get_extra_info("peercert")["serialNumber"]


def trusting(*certificates):
    context = ssl.create_default_context()
    for certificate in certificates:
        context.load_verify_locations(certificate)
    return context


async def test_a_renewed_certificate_is_offered_and_no_connection_is_lost(tmp_path):
    """Open connections go on with the old one."""
    cert, key = make_certificate(tmp_path)
    new_cert, new_key = make_certificate(tmp_path, "renewed")
    trust = trusting(cert, new_cert)
    certificate = Certificate(cert, key)
    async with running(ScriptedEngine(), start={"tls": certificate.context}) as up:
        old = await RawClient.connect(up.port, trust)
        await old.send(post(chat()))
        assert (await old.read_reply()).status == 200
        replace(new_key, key)
        replace(new_cert, cert)
        assert certificate.reload_if_changed()
        assert not certificate.reload_if_changed()
        new = await RawClient.connect(up.port, trust)
        for client in (new, old):
            await client.send(post(chat()))
            assert (await client.read_reply()).status == 200
        assert serial(new) != serial(old)
        for client in (new, old):
            client.close()


async def test_a_pair_that_does_not_fit_yet_changes_nothing(tmp_path, caplog):
    """The certificate is written before its key: the old pair is offered until both are there."""
    cert, key = make_certificate(tmp_path)
    new_cert, new_key = make_certificate(tmp_path, "renewed")
    trust = trusting(cert, new_cert)
    certificate = Certificate(cert, key)
    async with running(ScriptedEngine(), start={"tls": certificate.context}) as up:
        replace(new_cert, cert)
        assert not certificate.reload_if_changed()
        (warning,) = [each.getMessage() for each in caplog.records if "certificate" in each.message]
        assert "does not belong to the certificate" in warning
        before = await RawClient.connect(up.port, trust)
        replace(new_key, key)
        assert certificate.reload_if_changed()
        after = await RawClient.connect(up.port, trust)
        assert serial(before) != serial(after)
        for client in (before, after):
            client.close()


async def test_a_file_that_vanishes_changes_nothing(tmp_path):
    """It may be about to be replaced."""
    cert, key = make_certificate(tmp_path)
    certificate = Certificate(cert, key)
    key.unlink()
    assert not certificate.reload_if_changed()
    trust = trusting(cert)
    async with running(ScriptedEngine(), start={"tls": certificate.context}) as up:
        client = await RawClient.connect(up.port, trust)
        client.close()


def test_a_key_of_another_certificate_is_named(tmp_path):
    """Both files, and what is wrong."""
    cert, _key = make_certificate(tmp_path)
    _cert, other = make_certificate(tmp_path, "other")
    with pytest.raises(ConfigError, match=r"other.key does not belong to the certificate .*server"):
        Certificate(cert, other)


def test_what_is_no_pem_is_named(tmp_path):
    """And how it should be."""
    cert, key = make_certificate(tmp_path)
    (tmp_path / "text").write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"text and .*server.key cannot be used: .*PEM"):
        Certificate(tmp_path / "text", key)
    with pytest.raises(ConfigError, match="cannot be used"):
        Certificate(cert, tmp_path / "text")


def test_an_absent_file_is_named(tmp_path):
    """With its key in the configuration."""
    cert, _key = make_certificate(tmp_path)
    with pytest.raises(
        ConfigError, match=r"cannot read .*nothing, named by `tls.key_file`: No such"
    ):
        Certificate(cert, tmp_path / "nothing")


def test_an_encrypted_key_is_refused(tmp_path):
    """OpenSSL would ask for the password on the terminal, and again at each renewal."""
    cert, key = make_certificate(tmp_path)
    encrypt_key(key, tmp_path / "encrypted.key")
    with pytest.raises(ConfigError, match=r"tls.key_file` is encrypted"):
        Certificate(cert, tmp_path / "encrypted.key")


@pytest.mark.parametrize(
    ("version", "is_served"), [("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)]
)
async def test_tls_1_2_is_the_oldest(tmp_path, version, is_served):
    """RFC 8996 retired what was before."""
    cert, key = make_certificate(tmp_path)
    trust = trusting(cert)
    trust.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of the old version, which is the point
        trust.minimum_version = trust.maximum_version = ssl.TLSVersion[version]
    context = Certificate(cert, key).context
    async with running(ScriptedEngine(), start={"tls": context}) as up:
        if is_served:
            client = await RawClient.connect(up.port, trust)
            await client.send(post(chat()))
            assert (await client.read_reply()).status == 200
            client.close()
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await RawClient.connect(up.port, trust)


async def test_an_engine_under_another_name_is_refused(tmp_path):
    """Its authority is trusted, and it is not who it should be: no request reaches it."""
    cert, key = make_certificate(tmp_path, host="elsewhere.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    engine = ScriptedEngine()
    await engine.start(context)
    async with running(engine, configs=[engine.config(ca_file=str(cert))], waits=False) as up:
        await eventually(lambda: "mismatch" in up.gateway.replicas()[0].reason.lower())
        assert (await up.ask(post(chat()))).status == 503
    assert not engine.requests

"""The metrics over TLS and behind a password, as Prometheus, a probe and `top` ask for them."""

import base64
import os
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from test_health import free_port
from vhost_box import VhostBox
from workers import BUILD

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None,
                                reason="openssl is not installed (apt install openssl)")


def certificate(path, name="localhost"):
    """A certificate that signs itself, with its key, in one file."""
    key, own = path.with_suffix(".key"), path.with_suffix(".crt")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}", "-addext",
                    f"subjectAltName=DNS:{name},IP:127.0.0.1", "-keyout", str(key), "-out",
                    str(own)], check=True, capture_output=True, timeout=300)
    path.write_text(own.read_text() + key.read_text())
    return own


def password_file(folder):
    path = folder / "password"
    path.touch(mode=0o600)
    path.write_text("prometheus:open-sesame\n")
    return path


def get(url, authority, user_password=None):
    """(status, text) of a page."""
    request = urllib.request.Request(url)
    if user_password:
        words = base64.b64encode(user_password.encode()).decode()
        request.add_header("Authorization", f"Basic {words}")
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with urllib.request.urlopen(request, context=context, timeout=300) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("WWW-Authenticate", "")


def test_pages_are_encrypted_and_those_with_numbers_ask_for_the_password(tmp_path):
    authority = certificate(tmp_path / "server.pem")
    port = free_port()
    metrics = (f'[metrics]\naddress = "127.0.0.1:{port}"\n'
               f'certificate = "{tmp_path}/server.pem"\n'
               f'password_file = "{password_file(tmp_path)}"')
    url = f"https://127.0.0.1:{port}/"
    with VhostBox(tmp_path, ports=1, metrics=metrics):
        assert get(url + "metrics", authority) == (401, 'Basic realm="sluiced"')
        assert get(url, authority)[0] == 401
        assert get(url + "metrics", authority, "prometheus:guess")[0] == 401
        status, page = get(url + "metrics", authority, "prometheus:open-sesame")
        assert status == 200 and "sluice_ready 1" in page
        assert get(url, authority, "prometheus:open-sesame")[0] == 200
        assert get(url + "healthz", authority) == (200, "ok\n")
        assert get(url + "readyz", authority) == (200, "ready\n")
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=300)

        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login prometheus password open-sesame")
        command = [sys.executable, "-m", "sluice", "top", url, "--once", "--interval", "0.1"]
        environment = {**os.environ, "HOME": str(tmp_path), "SSL_CERT_FILE": str(authority)}
        (tmp_path / ".netrc").chmod(0o600)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300,
                              check=False)
        assert done.returncode == 0, done.stderr
        assert "worker0" in done.stdout
        (tmp_path / ".netrc").unlink()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300,
                              check=False)
        assert done.returncode == 1 and "metrics.password_file in ~/.netrc" in done.stderr

        path = tmp_path / "server.pem"
        later = path.stat().st_mtime + 10  # the server compares seconds
        renewed = certificate(path)
        os.utime(path, (later, later))
        assert get(url + "healthz", renewed) == (200, "ok\n")


def errors_of(folder, metrics):
    path = folder / "checked.toml"
    path.write_text(f'[appliance]\naddress = "10.77.0.1/24"\n[[port]]\nname = "a"\n'
                    f'type = "vhost-user"\npath = "{folder}/a.sock"\n[metrics]\n'
                    f'address = "127.0.0.1:{free_port()}"\n{metrics}\n')
    done = subprocess.run([BUILD / "dataplane" / "sluiced", "--check-config", "--config", path],
                          capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stderr


def test_a_certificate_that_cannot_be_used_is_an_error_before_the_start(tmp_path):
    own = certificate(tmp_path / "good.pem")
    certificate(tmp_path / "other.pem")
    mixed = tmp_path / "mixed.pem"
    mixed.write_text(own.read_text() + (tmp_path / "other.key").read_text())
    assert errors_of(tmp_path, f'certificate = "{tmp_path}/good.pem"') == (0, "")
    for path, why in ((tmp_path / "none.pem", "it can't be read (No such file or directory)"),
                      (own, "it has no key as PEM without a passphrase"),
                      (tmp_path / "good.key", "it has no certificate as PEM"),
                      (mixed, "its key is not that of its first certificate")):
        status, text = errors_of(tmp_path, f'certificate = "{path}"')
        assert status == 1
        assert f'checked.toml:9: metrics.certificate can\'t be used: "{path}": {why}' in text


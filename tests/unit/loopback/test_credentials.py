import json
import ssl
import time

import jwt
import pytest
from cryptography import x509

from loopback.credentials import KEY_ID, sign_token, write_certificates, write_issuer


def test_the_certificate_is_for_this_machine_and_its_key_is_private(tmp_path):
    write_certificates(tmp_path)
    leaf = x509.load_pem_x509_certificate((tmp_path / "host.pem").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert (tmp_path / "host.key").stat().st_mode & 0o777 == 0o600
    ssl.create_default_context(cafile=tmp_path / "ca.pem")
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "host.pem", tmp_path / "host.key")


@pytest.mark.parametrize("lifetime_s", [600, -600])
def test_a_token_is_signed_by_the_issuer_and_ends_when_asked(tmp_path, lifetime_s):
    write_issuer(tmp_path)
    text = sign_token((tmp_path / "issuer.pem").read_text(), "https://i", "storage.read:/", lifetime_s)
    (public,) = json.loads((tmp_path / "jwks.json").read_text())["keys"]
    assert public["kid"] == jwt.get_unverified_header(text)["kid"] == KEY_ID
    claims = jwt.decode(
        text,
        jwt.PyJWK(public).key,
        algorithms=["ES256"],
        audience="https://wlcg.cern.ch/jwt/v1/any",
        options={"verify_exp": False},
    )
    assert (claims["iss"], claims["scope"]) == ("https://i", "storage.read:/")
    assert claims["exp"] == pytest.approx(time.time() + lifetime_s, abs=5)
    assert claims["nbf"] < claims["exp"]

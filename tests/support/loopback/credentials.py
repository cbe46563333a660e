"""Keys of a loopback federation: its certificate authority, its host's certificate, its token issuer."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
import time
import uuid
from typing import TYPE_CHECKING, Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from crpipe.core.files import write_secret

if TYPE_CHECKING:
    from pathlib import Path

KEY_ID = "loopback"
DAYS = 30  # how long certificates and the issuer's cached keys last


def write_certificates(folder: Path) -> None:
    """Write ``ca.pem`` and a certificate with key for localhost, ``host.pem`` and ``host.key``."""
    authority, host = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _authority(authority)
    leaf = _host(host.public_key(), authority)
    (folder / "ca.pem").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "host.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    _write_key(folder / "host.key", host)


def write_issuer(folder: Path) -> None:
    """Write the issuer's signing key ``issuer.pem`` and its public half ``jwks.json``."""
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(folder / "issuer.pem", key)
    point = key.public_key().public_numbers()
    public = {
        "kty": "EC",
        "crv": "P-256",
        "use": "sig",
        "alg": "ES256",
        "kid": KEY_ID,
        "x": _base64url(point.x),
        "y": _base64url(point.y),
    }
    (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))


def sign_token(key: str | ec.EllipticCurvePrivateKey, issuer: str, scope: str, lifetime_s: float) -> str:
    """Sign a WLCG token; a negative ``lifetime_s`` makes one that expired that long ago."""
    now = int(time.time())
    begin = min(now, now + int(lifetime_s)) - 10
    claims: dict[str, Any] = {
        "wlcg.ver": "1.0",
        "iss": issuer,
        "sub": "loopback",
        "aud": "https://wlcg.cern.ch/jwt/v1/any",
        "scope": scope,
        "iat": begin,
        "nbf": begin,
        "exp": now + int(lifetime_s),
        "jti": str(uuid.uuid4()),
    }
    return jwt.encode(claims, key, algorithm="ES256", headers={"kid": KEY_ID})


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _certificate("crpipe loopback CA", key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _host(public: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        _certificate("localhost", public)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(signed_by, critical=False)
        .sign(signer, hashes.SHA256())
    )


def _certificate(subject: str, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "crpipe loopback CA")]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=DAYS))
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    form = serialization.PrivateFormat.PKCS8
    write_secret(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _base64url(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(32, "big")).rstrip(b"=").decode()

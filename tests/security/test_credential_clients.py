"""Clients that sign or check what they send, in a real guest with a credential that it never holds: an AWS SDK, Node's fetch."""

from __future__ import annotations

import importlib.metadata
import secrets
import shutil
from pathlib import Path

import pytest
from tests.security import motobucket
from tests.security.walled import Walled

import space
from space.sdk import Secret
from space.testing import clienttools, townshops
from space.testing.egresstown import Town
from space.testing.signedbucket import SignedBucket

BUCKET, MOTO_HOST, API = "s3.example.com", "moto.example.com", "node-api.example.com"
KEY = ("AKIDOFTHEBROKER", f"canary-{secrets.token_hex(16)}")
_SDK = ("boto3", "s3transfer", "botocore", "jmespath", "python-dateutil", "six", "urllib3")
_DATA = ("s3", "endpoints.json", "partitions.json", "sdk-default-configuration.json", "_retry.json")
PROGRAM = """
import sys; sys.path.insert(0, "/opt/aws")
import os, botocore.session
from botocore.config import Config
config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1})
made = botocore.session.get_session()
s3 = made.create_client("s3", "eu-test-1", endpoint_url="https://s3.example.com", config=config, verify=os.environ["SSL_CERT_FILE"],
                        aws_access_key_id="GUEST", aws_secret_access_key="nothing")
words = os.urandom(300_000)
s3.put_object(Bucket="bucket", Key="a b/words", Body=words)
print(s3.get_object(Bucket="bucket", Key="a b/words")["Body"].read() == words)
"""


MOTO = """
import sys; sys.path.insert(0, "/opt/aws")
import io, os, urllib.request, urllib.error, boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError
config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}, signature_version="s3v4")
of = dict(region_name="eu-west-1", endpoint_url="https://moto.example.com", config=config, verify=os.environ["SSL_CERT_FILE"])
of |= dict(aws_access_key_id="GUEST", aws_secret_access_key="nothing")
s3 = boto3.client("s3", **of)
def code(call, **words):
    try:
        call(**words)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return "none"
if sys.argv[1] == "without":
    print(code(s3.list_objects_v2, Bucket="data"))
    sys.exit()
whole = os.urandom(5 << 20) + b"and more"
parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
s3.upload_fileobj(io.BytesIO(whole), "data", "in parts/bin", Config=parts)
out = io.BytesIO()
s3.download_fileobj("data", "in parts/bin", out, Config=TransferConfig(max_concurrency=1))
assert out.getvalue() == whole, len(out.getvalue())
for number in range(5):
    s3.put_object(Bucket="data", Key=f"page/{number}?&= {number}", Body=b"%d" % number, Metadata={"number": str(number)})
pages = list(s3.get_paginator("list_objects_v2").paginate(Bucket="data", Prefix="page/", PaginationConfig={"PageSize": 2}))
keys = [one["Key"] for page in pages for one in page["Contents"]]
assert keys == [f"page/{number}?&= {number}" for number in range(5)], keys
assert s3.head_object(Bucket="data", Key=keys[3])["Metadata"] == {"number": "3"}
s3.copy_object(Bucket="data", Key="copy", CopySource={"Bucket": "data", "Key": keys[2]})
assert boto3.resource("s3", **of).Object("data", "copy").get()["Body"].read() == b"2"
s3.put_object_tagging(Bucket="data", Key="copy", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
assert s3.get_object_tagging(Bucket="data", Key="copy")["TagSet"] == [{"Key": "a", "Value": "b"}]
gone = s3.delete_objects(Bucket="data", Delete={"Objects": [{"Key": key} for key in keys]})["Deleted"]
assert len(gone) == 5, gone
assert code(s3.get_object, Bucket="data", Key=keys[0]) == "NoSuchKey"
try:
    urllib.request.urlopen(s3.generate_presigned_url("get_object", Params={"Bucket": "data", "Key": "copy"}))
except urllib.error.HTTPError as error:
    assert error.code == 400, error.code
else:
    assert False, "a presigned query says what only its own key can sign"
assert code(s3.list_buckets) != "none", "beyond what the grant names"
print("all of it")
"""


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """botocore of the tests' own environment with the one service, as a tree."""
    tree = tmp_path_factory.mktemp("aws")
    for name in _SDK:
        for file in importlib.metadata.files(name) or ():
            data = file.parts[:2] == ("botocore", "data")
            if ".." in file.parts or "__pycache__" in file.parts or (data and file.parts[2] not in _DATA):
                continue
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), tree / file)
    return tree


@pytest.mark.timeout(300)
def test_an_aws_sdk_stores_and_reads_with_a_key_that_it_does_not_have(guest: Walled, place: Town, client: space.Client, sdk: Path) -> None:
    bucket = SignedBucket(KEY, "eu-test-1")
    place.serve(BUCKET, bucket)
    guest.allow({"host": BUCKET})
    guest.sandbox.upload(sdk, "/opt/aws", user="root")
    client.put_secret("aws", {"secret_access_key": Secret(KEY[1].encode())}, kind="aws", public={"access_key_id": KEY[0]})
    slot = {"kind": "sigv4", "service": "s3", "region": "eu-test-1"}
    client.put_grant("bucket", {"secret": "aws", "where": {"host": BUCKET, "paths": ["/bucket/**"]}, "slot": slot})
    try:
        assert "SignatureDoesNotMatch" in guest.sh(f"python3 -c '{PROGRAM}'")[1], "without the grant its own key is worth nothing"
        guest.sandbox.attach_grant("bucket")
        bucket.wrong.clear()
        status, said = guest.sh(f"python3 -c '{PROGRAM}'")
        assert (status, said.strip()) == (0, "True"), (said, bucket.wrong)
        assert (bucket.signed >= 2, bucket.wrong) == (True, [])
        assert [len(one) for one in bucket.objects.values()] == [300_000]
        status, said = guest.sh(f"python3 -c '{PROGRAM.replace('bucket', 'other')}'")
        assert status != 0, "a bucket that the grant does not name"
        assert list(bucket.objects) == ["/bucket/a%20b/words"]
    finally:
        client.delete_grant("bucket")
        client.delete_secret("aws")


@pytest.mark.timeout(400)
def test_boto3_works_with_a_whole_s3_by_a_key_that_it_does_not_have(guest: Walled, place: Town, client: space.Client, sdk: Path) -> None:
    """Parts, pages, copies, tags, many at once, escaped keys: each request is signed outside, and checked before moto has it."""
    guest.allow({"host": MOTO_HOST})
    guest.sandbox.upload(sdk, "/opt/aws", user="root")
    guest.sandbox.files.write("/opt/moto.py", MOTO, user="root")
    client.put_secret("aws", {"secret_access_key": Secret(KEY[1].encode())}, kind="aws", public={"access_key_id": KEY[0]})
    slot = {"kind": "sigv4", "service": "s3", "region": "eu-west-1"}
    client.put_grant("data", {"secret": "aws", "where": {"host": MOTO_HOST, "paths": ["/data", "/data/**"]}, "slot": slot})
    try:
        with motobucket.moto("data") as there:
            bucket = motobucket.MotoBucket(KEY, there)
            place.serve(MOTO_HOST, bucket)
            assert guest.sh("python3 /opt/moto.py without")[1].strip() == "SignatureDoesNotMatch", "its own key is worth nothing"
            guest.sandbox.attach_grant("data")
            bucket.wrong.clear()
            status, said = guest.sh("python3 /opt/moto.py with", seconds=300)
            assert (status, said.strip()) == (0, "all of it"), (said, bucket.wrong)
            assert bucket.signed >= 18, bucket.done
            assert [one.partition("/?")[0].partition(" /: ")[0] for one in bucket.wrong] == ["GET"], (
                "all buckets, which is not the grant's to list"
            )
            assert not any(KEY[1] in head.decode("latin-1") for head in bucket.heads)
    finally:
        client.delete_grant("data")
        client.delete_secret("aws")


class _Keyed(townshops.Site):
    async def reply(self, method: str, target: str, head: bytes, body: bytes) -> tuple[str, str, bytes]:
        if f"\r\nx-api-key: {KEY[1]}\r\n".encode() not in head:
            return "401 Unauthorized", "text/plain", b"who are you"
        return "200 OK", "text/plain", b"welcome"


_NODE = (
    "fetch(process.argv[1], {headers: {'x-api-key': process.env.API_KEY}}).then(r => r.text().then(t => console.log(r.status, t)),"
    " e => console.log(String(e.cause)))"
)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_node_uses_a_placeholder_from_its_environment(guest: Walled, place: Town, client: space.Client) -> None:
    place.serve(API, _Keyed({}))
    guest.allow({"host": API})
    if not guest.sandbox.files.exists("/opt/clients/node", user="root"):
        guest.sandbox.upload(clienttools.tree("node"), "/opt/clients/node", user="root")
    client.put_secret("node", Secret(KEY[1].encode()))
    slot = {"kind": "placeholder", "env": "API_KEY", "in": "header", "name": "x-api-key", "prefix": "sk_", "length": 35}
    client.put_grant("node", {"secret": "node", "where": {"host": API}, "slot": slot})
    try:
        guest.sandbox.attach_grant("node")
        status, said = guest.sh(f'/opt/clients/node/bin/node -e "{_NODE}" https://{API}/me; echo "$API_KEY"')
        first, held = said.split("\n")[:2]
        assert (status, first) == (0, "200 welcome"), said
        assert (held.startswith("sk_"), len(held), held != KEY[1]) == (True, 35, True)
    finally:
        client.delete_grant("node")
        client.delete_secret("node")

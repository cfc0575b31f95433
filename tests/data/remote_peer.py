"""Shards behind servers of others: Python's http.server, and moto as S3. See scripts/remote_data_tests."""

import functools
import http.server
import json
import logging
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import boto3
from moto.server import ThreadedMotoServer

TESSERA = sys.argv[1]
STEPS = ["--steps", "6", "--layers", "1", "--heads", "2", "--width", "16", "--block", "16", "--batch", "4", "--accumulation", "2",
         "--eval-interval", "0", "--threads", "1"]


def run(*arguments, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "S3_", "CURL_", "SSL_", "TESSERA_"))}
    command = [TESSERA, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment | variables, timeout=300)


def checked(*arguments, **variables):
    result = run(*arguments, **variables)
    assert result.returncode == 0, (arguments, result.stderr)
    return result.stdout


def refused(*arguments, **variables):
    """The one line of an error."""
    result = run(*arguments, **variables)
    assert result.returncode in (1, 2) and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result
    return result.stderr


def left_behind(folder):
    return [name for _, _, names in os.walk(folder) for name in names if name.endswith(".part")]


class Files(http.server.SimpleHTTPRequestHandler):
    """Counts what is asked for."""
    asked = {}
    lock = threading.Lock()

    def do_GET(self):
        with self.lock:
            self.asked[self.path] = self.asked.get(self.path, 0) + 1
        super().do_GET()

    def log_message(self, *arguments):
        pass


def pack(folder):
    with open(f"{folder}/text.txt", "w") as file:
        file.writelines(f"line {i * i} of the text\n" for i in range(3000))
    common = ["--compression", "zstd", "--hashes", "sha1,xxh64"]
    checked("data", "pack", f"{folder}/text.txt", "--out", f"{folder}/lines here", "--size-limit", "8k", *common)
    checked("data", "pack", f"{folder}/text.txt", "--out", f"{folder}/tokens", "--block", 16, "--size-limit", "16k", *common)


def losses(*arguments, out, before=(), **variables):
    checked(*before, "train", "gpt", *STEPS, *arguments, "--out", out, "--json", f"{out}.json", **variables)
    with open(f"{out}.json") as file:
        return [step["loss"] for step in json.load(file)["steps"]]


def folders_and_addresses_are_the_same(folder, address, name, **variables):
    cache = ["--cache", f"{folder}/cache of {name}"]
    for command in ("info", "verify"):
        there = checked("data", command, f"{address}/lines here", *cache, **variables)
        assert there == checked("data", command, f"{folder}/lines here")
    assert checked("data", "read", f"{address}/lines here/", *cache, **variables).startswith("3000 samples in ")
    here = losses("--data", f"{folder}/tokens", out=f"{folder}/here")
    train = ["--data", f"{address}/tokens", "--data-cache", f"{folder}/cache of {name}"]
    assert losses(*train, out=f"{folder}/there of {name}", **variables) == here
    two = losses(*train, out=f"{folder}/two of {name}", before=["launch", "--procs", 2, "--", TESSERA], **variables)
    assert two == here
    assert not left_behind(f"{folder}/cache of {name}")


def processes_share_each_download(folder, address):
    Files.asked.clear()
    command = [TESSERA, "data", "verify", f"{address}/lines here", "--cache", f"{folder}/shared"]
    several = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(6)]
    assert all(p.communicate()[0].endswith(b" are whole\n") and p.returncode == 0 for p in several)
    shards = {path: count for path, count in Files.asked.items() if "shard" in path}
    assert len(shards) > 5 and set(shards.values()) == {1}, shards


def a_cache_stays_within_its_limit(folder, address):
    Files.asked.clear()
    checked("data", "verify", f"{address}/lines here", "--cache", f"{folder}/small", "--cache-limit", "4k")
    kept = [os.path.join(at, name) for at, _, names in os.walk(f"{folder}/small/shards") for name in names if name != "lock"]
    total = sum(map(os.path.getsize, kept))
    assert kept and total <= 4096, (kept, total)


def a_disk_that_fills_is_one_line(folder, address):
    """In a file system of 16 KiB, which takes root."""
    disk = f"{folder}/disk"
    os.mkdir(disk)
    script = ('mount -t tmpfs -o size=16k none "$1" || exit; '
              '"$2" data verify "$3" --cache "$1/cache"; echo "exit $?"; find "$1" -name "*.part"')
    command = ["unshare", "-m", "bash", "-c", script, "-", disk, TESSERA, f"{address}/big"]
    result = subprocess.run(command, capture_output=True, text=True)
    if "exit" not in result.stdout:
        return print("a full disk: skipped, it takes root")
    assert result.stdout in ("exit 1\n", "exit 2\n") and result.stderr.count("\n") == 1, result
    assert result.stderr.endswith(": No space left on device\n"), result.stderr


def certificates_are_checked(folder):
    """Of https://, by the system's authorities or by those that a variable names."""
    os.mkdir(f"{folder}/tls")
    key, certificate = f"{folder}/tls/key.pem", f"{folder}/tls/certificate.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "1",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=folder))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"https://127.0.0.1:{server.server_port}/lines here"
    assert "certificate" in refused("data", "info", address, "--deadline", 10)
    for variable in ("CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        assert checked("data", "info", address, **{variable: certificate}) == checked("data", "info", f"{folder}/lines here")
    print("https: a certificate of nobody is refused")


def s3_is_read(folder):
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    root = {"endpoint_url": endpoint, "aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "eu-west-3"}
    s3 = boto3.client("s3", **root)
    s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-3"})
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(at, name)
            key = "some data/" + os.path.relpath(path, folder)
            if key.startswith(("some data/lines here", "some data/tokens")):
                s3.upload_file(path, "bucket", key)
    iam = boto3.client("iam", **root)
    iam.create_user(UserName="reader")
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    trust = policy | {"Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]}
    role = iam.create_role(RoleName="role", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    iam.put_role_policy(RoleName="role", PolicyName="read", PolicyDocument=json.dumps(policy))
    session = boto3.client("sts", **root).assume_role(RoleArn=role, RoleSessionName="session")["Credentials"]
    # From here on moto checks every signature and every right.
    headers = {"Content-Type": "text/plain"}
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset-auth", b"0", headers)).read()

    variables = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "eu-west-3", "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
                 "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    folders_and_addresses_are_the_same(folder, "s3://bucket/some data", "s3", **variables)
    of_session = {"AWS_ACCESS_KEY_ID": session["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": session["SecretAccessKey"],
                  "AWS_SESSION_TOKEN": session["SessionToken"]}
    lines = ["data", "info", "s3://bucket/some data/lines here"]
    assert checked(*lines, **(variables | of_session)) == checked("data", "info", f"{folder}/lines here")
    other = variables | {"AWS_SECRET_ACCESS_KEY": "other"}
    assert refused(*lines, **other).endswith("/index.json: the server answers 403 (SignatureDoesNotMatch)\n")
    assert "InvalidToken" in refused(*lines, **(variables | of_session | {"AWS_SESSION_TOKEN": "other"}))
    assert "NoSuchKey" in refused("data", "info", "s3://bucket/none", **variables)
    assert "NoSuchBucket" in refused("data", "info", "s3://nobucket/none", **variables)
    server.stop()
    assert "after" in refused(*lines, "--deadline", 1, **variables)
    print("s3: signatures of keys and of sessions are checked by moto; info, verify, read, training on one and two ranks")


def main():
    with tempfile.TemporaryDirectory() as folder:
        pack(folder)
        checked("data", "pack", f"{folder}/text.txt", "--out", f"{folder}/big", "--size-limit", "64k")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        folders_and_addresses_are_the_same(folder, address, "http")
        processes_share_each_download(folder, address)
        a_cache_stays_within_its_limit(folder, address)
        a_disk_that_fills_is_one_line(folder, address)
        assert refused("data", "info", f"{address}/none").endswith("/none/index.json: is not there: the server answers 404\n")
        missing = refused("data", "info", f"{address}/lines here", TESSERA_CURL="libnone.so")
        assert missing.endswith("libnone.so was not found: install libcurl, or let TESSERA_CURL name it\n"), missing
        print("http: info, verify, read, training on one and two ranks; shared downloads, a limit, a full disk, no libcurl")
        certificates_are_checked(folder)
        s3_is_read(folder)


begin = time.monotonic()
main()
print(f"{time.monotonic() - begin:.0f} s")

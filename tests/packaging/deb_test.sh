#!/usr/bin/env bash
# The Debian packages: what is in each, what it depends on, that its programs run, and lintian.
# shellcheck source=tests/packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
need dh dh_python3 dpkg-buildpackage dpkg-deb pkg-config

"$SOURCE/config/debian/build.sh" "$BUILD" "$WORK" >"$WORK/packages" 2>"$WORK/log" ||
  fail "build.sh: $(cat "$WORK/log")"
mapfile -t packages <"$WORK/packages"
[[ ${#packages[@]} -eq 4 ]] || fail "not four packages but: ${packages[*]}"

# unpack NAME: its files into $WORK/root, its fields and scripts into $WORK/NAME.control.
unpack() {
  local deb=("$WORK/$1"_[0-9]*.deb)
  dpkg-deb -x "${deb[0]}" "$WORK/root"
  dpkg-deb -e "${deb[0]}" "$WORK/$1.control"
  dpkg-deb -c "${deb[0]}" | awk '$1 !~ /^d/ { print $6 }' >"$WORK/$1.files"
}
for name in sluiced libsluice0.3 libsluice-dev python3-sluice; do unpack "$name"; done

# Nothing is in two packages, and nothing outside what a package is for.
sort "$WORK"/*.files | uniq -d >"$WORK/twice"
[[ ! -s $WORK/twice ]] || fail "in two packages: $(cat "$WORK/twice")"
only() {
  grep -vE "^\./usr/share/(doc|lintian)/|$2" "$WORK/$1.files" >"$WORK/extra" || true
  [[ ! -s $WORK/extra ]] || fail "unexpected in $1: $(cat "$WORK/extra")"
}
pages='usr/share/(man|bash-completion|zsh)/'
box='usr/bin/sluice(d|ctl)$|etc/sluice/appliance.toml$|(usr/)?lib/systemd/system/'
box+='|usr/lib/[^/]+/sluiced/lib(ssl|crypto)\.so$'
only sluiced "^\./($box|$pages)"
only libsluice0.3 '^\./usr/lib/[^/]+/(libsluice\.so\.0|sluice/)'
only libsluice-dev '^\./usr/(include/sluice/|lib/[^/]+/(cmake|pkgconfig|libsluice\.so$))'
only python3-sluice "^\./(usr/bin/sluice$|usr/lib/python3/dist-packages/sluice/|$pages)"

abi=$(basename "$(realpath "$(pkg-config --variable=libdir libdpdk)/librte_eal.so")")
abi=${abi#librte_eal.so.}
for driver in net-vhost net-tap net-ice net-mlx5-; do
  expect_line "$WORK/sluiced.control/control" "^Depends: .*librte-$driver${abi%%.*}( |,|$)"
done
expect_line "$WORK/sluiced.control/control" '^Depends: .*libc6 \(>= '
expect_line "$WORK/sluiced.control/control" '^Depends: .*python3'
expect_line "$WORK/sluiced.control/conffiles" '^/etc/sluice/appliance\.toml$'
user=$(sed -n 's/^User=//p' "$SOURCE/config/deploy/sluiced.service")
expect_line "$WORK/sluiced.control/postinst" "adduser .* $user\$"
if grep -E 'libcrypto|libssl' "$WORK/libsluice0.3.control/control"; then
  fail "the workers' library needs a cryptographic library"
fi

# What is installed runs: the box takes the packaged settings, the command finds its library.
root=$WORK/root
cmp "$SOURCE/config/appliance.toml" "$root/etc/sluice/appliance.toml"
"$root/usr/bin/sluiced" --check-config --config "$root/etc/sluice/appliance.toml" \
  >"$WORK/out" 2>&1 ||
  fail "the packaged sluiced refuses the packaged settings: $(cat "$WORK/out")"
libraries=("$root"/usr/lib/*/sluice)
env -u SLUICE_LIBRARY "LD_LIBRARY_PATH=${libraries[0]%/sluice}" \
  "PYTHONPATH=$root/usr/lib/python3/dist-packages" \
  /usr/bin/python3 -B "$root/usr/bin/sluice" doctor >"$WORK/out" 2>&1 ||
  fail "sluice doctor: $(cat "$WORK/out")"
expect_line "$WORK/out" "^ok +library .* at .*$"
expect_line "$WORK/out" "^ok +vhost .*plug-in ${libraries[0]}/"

# Every option is in its manual page and its completion.
for option in $("$root/usr/bin/sluiced" --help | grep -oE -- '--[a-z-]+'); do
  zcat "$root/usr/share/man/man8/sluiced.8.gz" | sed 's/\\-/-/g' | grep -qF -- "$option" ||
    fail "sluiced(8) lacks $option"
  grep -qF -- "$option" "$root/usr/share/bash-completion/completions/sluiced" ||
    fail "the completion of sluiced lacks $option"
done
if command -v man >/dev/null; then
  for page in "$root"/usr/share/man/man*/*; do
    man --warnings -l "$page" 2>&1 >/dev/null | grep . >"$WORK/warnings" &&
      fail "$(basename "$page"): $(cat "$WORK/warnings")"
  done
fi
# shellcheck disable=SC2016 # the inner shell expands it
bash -c 'source "$1"; COMP_WORDS=(sluice launch --lo) COMP_CWORD=2; _sluice
  [[ ${COMPREPLY[*]} == --local-box ]]' completion \
  "$root/usr/share/bash-completion/completions/sluice" || fail "the completion of sluice"

if command -v zsh >/dev/null; then
  zsh_offers() {
    timeout 300 zsh -f "$SOURCE/tests/packaging/complete.zsh" \
      "$root/usr/share/zsh/vendor-completions" "$1" "$2" || fail "zsh offers no $2 after '$1'"
  }
  zsh_offers 'sluice ' launch
  zsh_offers 'sluice launch --lo' -box
  zsh_offers 'sluicectl ' log-level
  zsh_offers 'sluicectl log-level ' warning
fi

# An upgrade of a running service, with stand-ins for systemd: restarted if the settings pass.
mkdir "$WORK/bin"
# shellcheck disable=SC2016 # the stand-in expands it
printf '#!/bin/sh\necho "$0 $*" >>%s\n' "$WORK/calls" | tee "$WORK/bin/deb-systemd-invoke" \
  >"$WORK/bin/systemctl"
printf '#!/bin/sh\n[ -e %s ] || { echo "line 3: wrong"; exit 1; }\n' "$WORK/good" \
  >"$WORK/bin/sluiced"
printf '#!/bin/sh\nexit 0\n' >"$WORK/bin/getent"
chmod +x "$WORK/bin"/*
sed -e "s|/run/systemd/system|$WORK|" -e '/dh_installsystemd/,$d' \
  "$WORK/sluiced.control/postinst" >"$WORK/postinst"
upgrade() { PATH=$WORK/bin:$PATH sh "$WORK/postinst" configure 0.2.0 >"$WORK/out" 2>&1; }
upgrade || fail "an upgrade: $(cat "$WORK/out")"
expect_line "$WORK/out" 'was not restarted'
expect_line "$WORK/out" '^line 3: wrong$'
if grep -q restart "$WORK/calls"; then fail "restarted with settings that do not pass"; fi
touch "$WORK/good"
upgrade || fail "an upgrade: $(cat "$WORK/out")"
expect_line "$WORK/calls" 'deb-systemd-invoke restart sluiced.service$'

if command -v systemd-analyze >/dev/null; then
  # Complains about the program that is not installed here; anything else is ours.
  systemd-analyze verify "$SOURCE/config/deploy/sluiced.service" 2>&1 |
    grep -v 'is not executable: No such file' >"$WORK/unit" || true
  [[ ! -s $WORK/unit ]] || fail "sluiced.service: $(cat "$WORK/unit")"
fi
if command -v lintian >/dev/null; then
  lintian --allow-root --fail-on error,warning "${packages[@]}" >"$WORK/lintian" 2>&1 ||
    fail "lintian: $(cat "$WORK/lintian")"
fi

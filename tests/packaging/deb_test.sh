#!/usr/bin/env bash
# The Debian package of the appliance: what is in it, what it depends on, and that it runs.
# shellcheck source=tests/packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
need cpack dpkg dpkg-deb dpkg-shlibdeps

cpack --config "$BUILD/CPackConfig.cmake" -B "$WORK" >"$WORK/log" 2>&1 ||
  fail "cpack: $(cat "$WORK/log")"
mapfile -t packages < <(find "$WORK" -maxdepth 1 -name '*.deb')
[[ ${#packages[@]} -eq 1 ]] || fail "not one package but: ${packages[*]}"
deb=${packages[0]}
[[ $(basename "$deb") =~ ^sluiced_[0-9.]+_[a-z0-9]+\.deb$ ]] || fail "odd file name: $deb"

dpkg-deb -c "$deb" >"$WORK/contents"
expect_line "$WORK/contents" '^-rwxr-xr-x root/root .* \./usr/bin/sluiced$'
expect_line "$WORK/contents" '^-rw-r--r-- root/root .* \./etc/sluice/appliance\.toml$'
expect_line "$WORK/contents" '^-rw-r--r-- .* \./usr/lib/systemd/system/sluiced\.service$'
expect_line "$WORK/contents" ' \./usr/share/doc/sluice/examples/lab\.toml$'
# Nothing of the client, and nothing outside these three trees.
awk '$1 ~ /^-/ { print $6 }' "$WORK/contents" |
  grep -vE '^\./(usr/bin/sluiced$|etc/sluice/|usr/lib/systemd/system/|usr/share/doc/)' \
    >"$WORK/extra" || true
[[ ! -s $WORK/extra ]] || fail "unexpected files: $(cat "$WORK/extra")"

dpkg-deb -f "$deb" >"$WORK/fields"
expect_line "$WORK/fields" '^Package: sluiced$'
abi=$(basename "$(realpath "$(pkg-config --variable=libdir libdpdk)/librte_eal.so")")
abi=${abi#librte_eal.so.}
expect_line "$WORK/fields" "^Depends: .*librte-net-vhost${abi%%.*}.*libc6 \(>= "
expect_line "$WORK/fields" "^Depends: .*librte-eal${abi%%.*}"
dpkg-deb -e "$deb" "$WORK/control"
expect_line "$WORK/control/conffiles" '^/etc/sluice/appliance\.toml$'
sh -n "$WORK/control/postinst"
user=$(sed -n 's/^User=//p' "$SOURCE/config/deploy/sluiced.service")
expect_line "$WORK/control/postinst" "adduser .* $user\$"

dpkg-deb -x "$deb" "$WORK/root"
cmp "$SOURCE/config/appliance.toml" "$WORK/root/etc/sluice/appliance.toml"
"$WORK/root/usr/bin/sluiced" --check-config --config "$WORK/root/etc/sluice/appliance.toml" \
  >"$WORK/out" 2>&1 ||
  fail "the packaged sluiced refuses the packaged settings: $(cat "$WORK/out")"
if command -v systemd-analyze >/dev/null; then
  # Complains about the program that is not installed here; anything else is ours.
  systemd-analyze verify "$SOURCE/config/deploy/sluiced.service" 2>&1 |
    grep -v 'is not executable: No such file' >"$WORK/unit" || true
  [[ ! -s $WORK/unit ]] || fail "sluiced.service: $(cat "$WORK/unit")"
fi

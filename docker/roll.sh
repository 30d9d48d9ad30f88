#!/bin/sh
# Replaces all replicas of the service without a failed request, for a new release or new settings.
#
#   docker/roll.sh            uses the existing image
#   docker/roll.sh --build    builds the service's image first
#
# The script starts the same number of new replicas beside the old ones. When all new replicas are
# ready, the old replicas drain and stop one after another. If the new replicas do not become ready,
# the script removes them, and the old replicas continue.
set -eu
cd "$(dirname "$0")/.."

SETTLE_S=${SETTLE_S:-10} # seconds for the balancer to find the new replicas and check them

replicas() { docker compose ps --quiet service; }

new_replicas() { replicas | grep -vxF "$old" || true; }

if [ "${1-}" = --build ]; then
  docker compose build service
fi

old=$(replicas)
n=$(echo "$old" | grep -c . || true)
if [ "$n" -eq 0 ]; then
  echo "No replica of the service runs. Start it with: docker compose up -d --wait" >&2
  exit 1
fi

# If the new release cannot read the bundle, the script stops, and the old replicas continue.
if ! docker compose run --rm operate upgrade /bundles --check; then
  echo "Run first: docker compose run --rm operate upgrade /bundles" >&2
  exit 1
fi

give_up() {
  echo "The new replicas are not ready. They are removed; the old replicas continue." >&2
  for replica in $(new_replicas); do
    docker rm --force "$replica"
  done
  exit 1
}

# `up --wait` would also wait for the old replicas, and one of them can be unhealthy.
docker compose up --detach --no-deps --no-recreate --scale "service=$((2 * n))" service || give_up
for replica in $(new_replicas); do
  state="0 starting"
  while [ "$state" = "0 starting" ]; do
    sleep 1
    state=$(docker inspect --format '{{.RestartCount}} {{.State.Health.Status}}' "$replica") ||
      state=gone
  done
  if [ "$state" != "0 healthy" ]; then
    echo "The last log lines of the new replica $replica:" >&2
    docker logs --tail 20 "$replica" >&2 || true
    give_up
  fi
done
sleep "$SETTLE_S"
for replica in $old; do
  docker stop "$replica"
  docker rm "$replica"
done

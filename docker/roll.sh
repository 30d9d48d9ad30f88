#!/bin/sh
# Replaces all replicas of the service without a failed request, for a new release or new settings.
#
#   docker/roll.sh            from images that are there
#   docker/roll.sh --build    builds the service's image first
#
# As many new replicas start beside the old ones. Once they are ready, the old ones drain and end, one
# after another. If the new ones do not become ready, they are removed, and the old ones serve on.
set -eu
cd "$(dirname "$0")/.."

SETTLE_S=${SETTLE_S:-10} # until the balancer has found the new replicas, and has seen them ready

replicas() { docker compose ps --quiet service; }

if [ "${1-}" = --build ]; then
  docker compose build service
fi

old=$(replicas)
n=$(echo "$old" | grep -c . || true)
if [ "$n" -eq 0 ]; then
  echo "No replica of the service runs. Start it with: docker compose up -d --wait" >&2
  exit 1
fi

# The old replicas go on if the new release cannot read the bundle.
if ! docker compose run --rm operate upgrade /bundles --check; then
  echo "Run first: docker compose run --rm operate upgrade /bundles" >&2
  exit 1
fi

if ! docker compose up --detach --wait --no-deps --no-recreate --scale "service=$((2 * n))" service; then
  echo "The new replicas are not ready. They are removed; the old ones serve on." >&2
  for replica in $(replicas); do
    case "$old" in *"$replica"*) ;; *) docker rm --force "$replica" ;; esac
  done
  exit 1
fi
sleep "$SETTLE_S"
for replica in $old; do
  docker stop "$replica"
  docker rm "$replica"
done

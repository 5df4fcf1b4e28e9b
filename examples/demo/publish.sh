# Stands for a tool that changes the world: it takes effect at once, and takes its time to say so.
# Each effect leaves a line with its idempotency key. While a file `hold` exists, the tool doesn't come to an end.
printf '%s %s\n' "$FISK_AI_IDEMPOTENCY_KEY" "$1" >> outbox.txt
while [ -e hold ]; do sleep 0.05; done
echo "published: $1"

# The sample service, in mount, network, host name and process namespaces that exist already: to the service they
# are a separate machine. They are removed with its last process.
set -eu
hostname checkout-1
mount -t tmpfs tmpfs /mnt
cp -a --no-preserve=ownership /etc/nsswitch.conf /etc/passwd /etc/group /mnt/ 2>/dev/null || true
mkdir /mnt/checkout
echo 'greeting: hello from checkout' > /mnt/checkout/settings.yaml
printf '127.0.0.1 localhost\n10.77.0.1 checkout-1\n10.77.0.2 inventory.shop.internal\n' > /mnt/hosts
: > /mnt/resolv.conf
mount --bind /mnt /etc
ip link set lo up
ip addr add 10.77.0.1/32 dev lo
ip addr add 10.77.0.2/32 dev lo
export CHECKOUT_CURRENCY=EUR
exec "$1" 10.77.0.2:8080 10.77.0.1:8000

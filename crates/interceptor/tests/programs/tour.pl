use strict; use warnings; use Sys::Hostname; use IO::Socket::INET; $| = 1;
sub slurp { open my $file, "<", $_[0] or return "failed: $!"; local $/; return <$file> }
print "env $ENV{GREETING}\n";
print "read ", slurp("/remote-files/file"), "\n";
opendir my $directory, "/remote-files/list" or die $!;
print "list [", join(" ", sort grep { !/^\./ } readdir $directory), "]\n";
print "missing ", (-e "/remote-files/missing" ? "false" : "true"), "\n";
open my $file, ">", "/remote-files/written" or die $!; print $file "written"; close $file; print "write ok\n";
print "hostname ", hostname(), "\n";
my $s = IO::Socket::INET->new(PeerAddr => "198.51.100.7", PeerPort => 7) or die $!;
$s->send("hello"); $s->recv(my $text, 100); print "tcp $text\n";
my $u = IO::Socket::INET->new(Proto => "udp") or die $!;
$u->send("packet", 0, pack_sockaddr_in(7, inet_aton("198.51.100.7")));
my ($port, $ip) = unpack_sockaddr_in($u->recv($text, 100));
print "packet $text ", inet_ntoa($ip), ":$port\n";

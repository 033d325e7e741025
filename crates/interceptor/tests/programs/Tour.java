import java.net.*;
import java.nio.file.*;
import java.util.*;
import java.util.stream.*;

class Tour {
    public static void main(String[] arguments) throws Exception {
        System.out.println("env " + System.getenv("GREETING"));
        System.out.println("read " + Files.readString(Path.of("/remote-files/file")));
        try (Stream<Path> list = Files.list(Path.of("/remote-files/list"))) {
            System.out.println("list [" + list.map(p -> p.getFileName().toString()).sorted().collect(Collectors.joining(" ")) + "]");
        }
        System.out.println("missing " + !Files.exists(Path.of("/remote-files/missing")));
        Files.writeString(Path.of("/remote-files/written"), "written");
        System.out.println("write ok");
        Process process = new ProcessBuilder("uname", "-n").start();
        System.out.println("hostname " + new String(process.getInputStream().readAllBytes()).trim());
        byte[] buffer = new byte[100];
        try (Socket socket = new Socket("198.51.100.7", 7)) {
            socket.getOutputStream().write("hello".getBytes());
            int count = socket.getInputStream().read(buffer);
            System.out.println("tcp " + new String(buffer, 0, count));
        }
        try (DatagramSocket socket = new DatagramSocket()) {
            socket.setSoTimeout(10000);
            InetAddress to = InetAddress.getByName("198.51.100.7");
            socket.send(new DatagramPacket("packet".getBytes(), 6, to, 7));
            DatagramPacket packet = new DatagramPacket(buffer, 100);
            socket.receive(packet);
            System.out.println("packet " + new String(buffer, 0, packet.getLength()) + " "
                    + packet.getAddress().getHostAddress() + ":" + packet.getPort());
        }
    }
}

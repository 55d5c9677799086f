// An HTTP server as many are written in Java: each request makes garbage, and a cache lives long.
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

public class Serve {
	static final int KEPT = 20_000;
	static final Map<Long, byte[]> cache = new LinkedHashMap<>() {
		@Override
		protected boolean removeEldestEntry(Map.Entry<Long, byte[]> eldest) {
			return size() > KEPT;
		}
	};

	public static void main(String[] arguments) throws Exception {
		var number = new AtomicLong();
		var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 64);
		server.createContext("/", exchange -> {
			long sum = 0;
			for (int part = 0; part < 50; part++) {
				var garbage = new byte[4096];
				garbage[part] = 1;
				sum += garbage[part];
			}
			synchronized (cache) {
				cache.put(number.incrementAndGet(), new byte[4096]);
			}
			var body = new byte[1024];
			body[0] = (byte) sum;
			exchange.sendResponseHeaders(200, body.length);
			exchange.getResponseBody().write(body);
			exchange.close();
		});
		server.setExecutor(Executors.newFixedThreadPool(4));
		server.start();
	}
}

// A batch job as Spark runs one: every thread sorts and joins blocks of records, and the heap is used to its end.
import java.util.Arrays;
import java.util.concurrent.ThreadLocalRandom;

public class Batch {
	public static void main(String[] arguments) throws Exception {
		int threads = Integer.parseInt(arguments[0]);
		int blocks = Integer.parseInt(arguments[1]); // of 8 MiB, that each thread holds
		for (int number = 0; number < threads; number++) {
			new Thread(() -> work(blocks)).start();
		}
	}

	static void work(int blocks) {
		var random = ThreadLocalRandom.current();
		var held = new long[blocks][];
		for (int at = 0;; at = (at + 1) % blocks) {
			var block = new long[1 << 20];
			for (int i = 0; i < block.length; i++) {
				block[i] = random.nextLong();
			}
			Arrays.sort(block);
			held[at] = block;
		}
	}
}

package netstack.peer;

import java.io.IOException;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;
import org.apache.flink.types.CopyableValue;

/** An index in eight bytes and a filler: exactly as many bytes as the cell says, without a length of its own. */
public final class Record implements CopyableValue<Record> {
    /** Bytes of every record of the running cell; there is one cell at a time. */
    static volatile int size = 8;

    long index;
    byte[] filler;

    public Record() {
        filler = new byte[size - 8];
    }

    boolean isIntact() {
        return filler.length == 0 || filler[filler.length - 1] == (byte) index;
    }

    void set(long index) {
        this.index = index;
        if (filler.length > 0) {
            filler[filler.length - 1] = (byte) index;
        }
    }

    @Override
    public void write(DataOutputView out) throws IOException {
        out.writeLong(index);
        out.write(filler);
    }

    @Override
    public void read(DataInputView in) throws IOException {
        index = in.readLong();
        in.readFully(filler);
    }

    @Override
    public int getBinaryLength() {
        return 8 + filler.length;
    }

    @Override
    public void copyTo(Record target) {
        target.index = index;
        target.filler = filler.clone();
    }

    @Override
    public Record copy() {
        Record made = new Record();
        copyTo(made);
        return made;
    }

    @Override
    public void copy(DataInputView source, DataOutputView target) throws IOException {
        target.write(source, getBinaryLength());
    }
}

"""Where kernel signals come from: CO-RE objects, bcc, or plain files; which one is found by trying."""

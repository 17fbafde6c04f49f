/*
 * A 64-bit guest for directed yields. rdi is the vCPU's number, rsi the load, r8 the number of vCPUs:
 *   0 ipi   even vCPUs send an interrupt to the next one and spin with PAUSE until its handler
 *           has answered; odd vCPUs compute
 *   1 hog   all compute
 *   2 lock  all take one lock in turn and spin with PAUSE for it
 *   3 tlb   vCPU 0 interrupts all others at once and spins with PAUSE until each has answered, as
 *           for a TLB shootdown; the others compute
 *   4 spin  all spin with PAUSE, and never stop
 *   5 pv    as tlb, by the hypercall KVM_HC_SEND_IPI
 * Each vCPU has 64 bytes at 0x20000: answer, round trips, work, request. It has 512 counts at 0x28000, of
 * waits by their time in cycles of the TSC: eight for each power of two.
 */
	.intel_syntax noprefix

	/* r10 is the time at which a wait begins. */
	.macro wait_begins
	rdtsc
	shl rdx, 32
	lea r10, [rdx + rax]
	.endm

	/* r12 has the counts. A wait below 8 cycles counts as 8. */
	.macro wait_ends
	rdtsc
	shl rdx, 32
	add rax, rdx
	sub rax, r10
	or rax, 8
	bsr rcx, rax
	lea r11, [rcx * 8]
	sub ecx, 3
	shr rax, cl
	and eax, 7
	add r11, rax
	inc dword ptr [r12 + r11 * 4]
	.endm

	.code64
	.globl _start
_start:
	/* x2APIC spurious vector register: software enable. */
	mov ecx, 0x80f
	mov eax, 0x1ff
	xor edx, edx
	wrmsr
	mov rbx, rdi
	shl rbx, 6
	add rbx, 0x20000
	mov r12, rdi
	shl r12, 11
	add r12, 0x28000
	cmp esi, 1
	je compute
	cmp esi, 2
	je lock_loop
	cmp esi, 3
	je shootdown
	cmp esi, 5
	je shootdown
	cmp esi, 4
	je spin_on
	test edi, 1
	jnz receive

	/* An interrupt to a LAPIC that is not on yet is dropped: wait until the partner computes. */
wait_for_partner:
	pause
	cmp qword ptr [rbx + 64 + 16], 0
	je wait_for_partner
send:
	wait_begins
	inc qword ptr [rbx + 8]
	mov rax, [rbx + 8]
	mov [rbx + 24], rax
	mov ecx, 0x830
	mov eax, 0x40
	lea edx, [rdi + 1]
	wrmsr
spin:
	pause
	mov rax, [rbx + 64]
	cmp rax, [rbx + 24]
	jne spin
	wait_ends
	mov ecx, 2000
think:
	dec ecx
	jnz think
	jmp send

receive:
	sti
compute:
	inc qword ptr [rbx + 16]
	jmp compute

spin_on:
	pause
	inc qword ptr [rbx + 8]
	jmp spin_on

	/* A ticket lock at 0x30000 (next) and 0x30008 (serving). */
lock_loop:
	wait_begins
	mov eax, 1
	lock xadd qword ptr [0x30000], rax
wait_for_turn:
	cmp [0x30008], rax
	je locked
	pause
	jmp wait_for_turn
locked:
	wait_ends
	mov ecx, 20000
hold:
	dec ecx
	jnz hold
	inc qword ptr [rbx + 8]
	inc qword ptr [0x30008]
	mov ecx, 20000
outside:
	dec ecx
	jnz outside
	inc qword ptr [rbx + 16]
	jmp lock_loop

	/*
	 * The handler of vector 0x40: the sender's request is the answer. As in Linux (apic_eoi), the EOI comes
	 * first.
	 */
	.org 0x200
	push rax
	push rcx
	push rdx
	mov ecx, 0x80b
	xor eax, eax
	xor edx, edx
	wrmsr
	mov rax, [rbx - 64 + 24]
	cmp esi, 3
	jb answer
	mov rax, [0x20000 + 24]
answer:
	mov [rbx], rax
	pop rdx
	pop rcx
	pop rax
	iretq

shootdown:
	test edi, edi
	jnz receive
	/* rbp counts the partners, r9 is the data of one. */
	mov ebp, 1
	lea r9, [rbx + 64]
wait_for_all:
	pause
	cmp qword ptr [r9 + 16], 0
	je wait_for_all
	add r9, 64
	inc ebp
	cmp ebp, r8d
	jb wait_for_all
shoot:
	wait_begins
	inc qword ptr [rbx + 8]
	mov rax, [rbx + 8]
	mov [rbx + 24], rax
	cmp esi, 5
	je call
	mov ecx, 0x830
	mov eax, 0xc0040
	xor edx, edx
	wrmsr
sent:
	mov ebp, 1
	lea r9, [rbx + 64]
spin_for_all:
	pause
	mov rax, [r9]
	cmp rax, [rbx + 24]
	jne spin_for_all
	add r9, 64
	inc ebp
	cmp ebp, r8d
	jb spin_for_all
	wait_ends
	mov ecx, 2000
think_again:
	dec ecx
	jnz think_again
	jmp shoot

	/* rbx and rcx are the mask of vCPUs, rdx its first one, rsi the ICR. */
call:
	push rbx
	push rsi
	mov ecx, r8d
	mov ebx, 1
	shl rbx, cl
	sub rbx, 2
	xor ecx, ecx
	xor edx, edx
	mov esi, 0x40
	mov eax, 10
	vmmcall
	pop rsi
	pop rbx
	jmp sent
